/* experimental.c - a program that uses experimental headers: it links the static library. */
#include <krait/experimental/check.h>
#include <krait/experimental/json.h>
#include <krait/experimental/testing.h>
#include <krait/experimental/train_plan.h>

#include <stdio.h>

int main(void)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    kr_json *config = kr_json_parse(ctx, "{\"d_model\": 256}", 16, NULL);
    printf("d_model = %lld, ", (long long)kr_json_integer(kr_json_find(config, "d_model"), -1));
    kr_json_destroy(config);
    kr_ctx_fail_allocation(ctx, 1);
    kr_tensor *none = kr_param_create(ctx, KR_DTYPE_F32, KR_SHAPE(4));
    printf("%s, ", none ? "memory" : kr_status_name(kr_ctx_status(ctx)));
    kr_ctx_clear(ctx);
    kr_plan_options plan;
    kr_plan_options_init(&plan);
    printf("%lld ranks, ", (long long)plan.ranks);
    kr_check_options options;
    kr_check_options_init(&options);
    options.isa = "none";
    kr_check_counts counts;
    printf("%s\n", kr_status_name(kr_check_run(ctx, &options, &counts)));
    kr_ctx_destroy(ctx);
    return 0;
}
