/* test_model_mapping.c - weights that are used where they lie in a mapped file: no copy is made, processes share the pages,
 * writes stay in the process, and files that are replaced, converted or not aligned change nothing.
 */
#define _DEFAULT_SOURCE
#include "tests/model/folders.h"

#include "nn/params_impl.h"

#include <sys/wait.h>

static kr_ctx *ctx;

static void begin(void)
{
    begin_folder();
    ctx = logging_ctx();
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_ctx_destroy(ctx);
    end_folder();
}

/* A model of some MiB in folder "m", saved with this type of matrices. */
static void save_model(kr_dtype dtype)
{
    kr_model_config *config = kr_model_config_create(ctx);
    kr_model_config_set_d_model(config, 128);
    config->layers->n_layers = 2;
    config->network->vocab_size = 4096;
    config->mamba2->state_rank = 16;
    config->mamba2->per_head_dim = 32;
    kr_model *model = kr_model_create(ctx, config);
    kr_save_options options;
    kr_save_options_init(&options);
    options.dtype = dtype;
    CHECK(kr_model_save(model, in_folder("m"), &options) == KR_OK, "%s", kr_ctx_message(ctx));
    kr_model_destroy(model);
    kr_model_config_destroy(config);
}

static kr_model *load(kr_dtype dtype, bool no_mmap)
{
    kr_load_options options;
    kr_load_options_init(&options);
    options.dtype = dtype;
    options.no_mmap = no_mmap;
    kr_model *model = kr_model_load(ctx, in_folder("m"), &options);
    CHECK(model != NULL, "%s", kr_ctx_message(ctx));
    return model;
}

static kr_params *params_of(const kr_model *model)
{
    return kr_network_params(kr_model_network(model));
}

static size_t weight_bytes(const kr_model *model)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < kr_params_count(params_of(model)); i++) {
        const kr_tensor *x = kr_params_at(params_of(model), i)->tensor;
        bytes += (size_t)kr_tensor_count(x) * kr_dtype_bytes(kr_tensor_dtype(x));
    }
    return bytes;
}

/* Of what the process has mapped at p, in KiB, by a name of /proc/self/smaps; -1: not found. */
static long smaps(const void *p, const char *name)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    bool is_here = false;
    long found = -1, kib;
    while (file && found < 0 && fgets(line, sizeof line, file)) {
        unsigned long long from, to;
        char key[64];
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2) is_here = (uintptr_t)p >= from && (uintptr_t)p < to;
        else if (is_here && sscanf(line, "%63[^:]: %ld kB", key, &kib) == 2 && strcmp(key, name) == 0) found = kib;
    }
    if (file) fclose(file);
    return found;
}

static void *embedding(const kr_model *model)
{
    return kr_tensor_data(kr_params_find(params_of(model), "backbone.embedding.weight")->tensor);
}

/* Every type that is stored as it is wanted; with no_mmap, and converted, all of it is copied. */
TEST(weights_are_used_where_they_lie)
{
    static const kr_dtype dtypes[] = { KR_DTYPE_F32, KR_DTYPE_F64, KR_DTYPE_BF16, KR_DTYPE_F16 };
    begin();
    if (kr_test_on_device(ctx)) {
        end();
        SKIP("weights are copied to the device");
    }
    for (int t = 0; t < 4; t++) {
        save_model(dtypes[t]);
        const size_t idle = kr_ctx_memory(ctx).live_bytes;
        kr_model *mapped = load(KR_DTYPE_AS_STORED, false);
        const size_t with_map = kr_ctx_memory(ctx).live_bytes - idle, whole = weight_bytes(mapped);
        CHECK(with_map < whole / 20, "%s: %zu bytes for %zu of weights", kr_dtype_name(dtypes[t]), with_map, whole);
        kr_model *read = load(KR_DTYPE_AS_STORED, true);
        CHECK(kr_ctx_memory(ctx).live_bytes - idle >= with_map + whole, "no_mmap copies");
        CHECK(kr_params_values_hash(params_of(mapped)) == kr_params_values_hash(params_of(read)), "values");
        kr_model_destroy(read);
        kr_model_destroy(mapped);
        kr_model *other = load(dtypes[t] == KR_DTYPE_F32 ? KR_DTYPE_F64 : KR_DTYPE_F32, false);
        CHECK(kr_ctx_memory(ctx).live_bytes - idle >= (t == 0 ? whole : 4096 * 128 * 4),
              "converted weights are copied");
        kr_model_destroy(other);
        CHECK(kr_ctx_memory(ctx).live_bytes == idle, "%zu bytes are left", kr_ctx_memory(ctx).live_bytes - idle);
        drop_folder("m");
    }
    end();
}

/* Pages that several processes or maps have; those of a file in memory count as dirty. */
static long shared_kib(const void *p)
{
    return smaps(p, "Shared_Clean") + smaps(p, "Shared_Dirty");
}

static double sum_of(const void *data, size_t bytes)
{
    double sum = 0;
    for (size_t i = 0; i < bytes / sizeof(float); i++) sum += (double)((const float *)data)[i];
    return sum;
}

/* In the child: the pages are those of the parent. 0: they are shared; the process has none of its own. */
static int count_pages(double *sum)
{
    kr_ctx *own = kr_test_ctx(1, NULL);
    kr_model *model = kr_model_load(own, in_folder("m"), NULL);
    if (!model) return 1;
    const size_t bytes = 4096 * 128 * 4;
    *sum = sum_of(embedding(model), bytes);
    const long shared = shared_kib(embedding(model)), own_kib = smaps(embedding(model), "Anonymous");
    if (shared < (long)(bytes / 1024) || own_kib != 0) {
        printf("%ld KiB are shared, %ld KiB are the process's own\n", shared, own_kib);
        fflush(stdout);
        return 2;
    }
    kr_model_destroy(model);
    kr_ctx_destroy(own);
    return 0;
}

TEST(processes_share_the_pages)
{
    begin();
    save_model(KR_DTYPE_F32);
    kr_model *model = load(KR_DTYPE_AS_STORED, false);
    if (kr_test_on_device(ctx) || smaps(embedding(model), "Shared_Clean") < 0) {
        kr_model_destroy(model);
        drop_folder("m");
        end();
        SKIP("no host memory of the weights, or no /proc/self/smaps");
    }
    double sum = sum_of(embedding(model), 4096 * 128 * 4), got = 0; /* its pages are there */
    CHECK(smaps(embedding(model), "Anonymous") == 0, "a page was copied");
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const int result = count_pages(&got);
        _exit(result ? result : got == sum ? 0 : 3);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "the child ended with %d", status);
    *(float *)embedding(model) = 1;
    CHECK(smaps(embedding(model), "Anonymous") > 0, "a page that is written is copied");
    kr_model_destroy(model);
    drop_folder("m");
    end();
}

/* Training writes copies of the pages. */
TEST(writes_stay_in_the_process)
{
    begin();
    save_model(KR_DTYPE_F32);
    kr_model *model = load(KR_DTYPE_AS_STORED, false), *other = load(KR_DTYPE_AS_STORED, false);
    const uint64_t before = kr_params_values_hash(params_of(other));
    for (int64_t i = 0; i < kr_params_count(params_of(model)); i++)
        CHECK(kr_param_fill(kr_params_at(params_of(model), i)->tensor, 0.5) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(kr_params_values_hash(params_of(model)) != before, "nothing was written");
    CHECK(kr_params_values_hash(params_of(other)) == before, "another model has changed");
    kr_model *again = load(KR_DTYPE_AS_STORED, false);
    CHECK(kr_params_values_hash(params_of(again)) == before, "the file has changed");
    kr_model_destroy(again);
    kr_model_destroy(other);
    kr_model_destroy(model);
    drop_folder("m");
    end();
}

/* A model may be saved over its own file, and the file removed: the map is that of the old one. */
TEST(mapped_files_may_be_replaced)
{
    begin();
    save_model(KR_DTYPE_F32);
    kr_model *model = load(KR_DTYPE_AS_STORED, false);
    const uint64_t before = kr_params_values_hash(params_of(model));
    kr_param_fill(kr_params_at(params_of(model), 0)->tensor, 3);
    const uint64_t changed = kr_params_values_hash(params_of(model));
    CHECK(changed != before && kr_model_save(model, in_folder("m"), NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(kr_params_values_hash(params_of(model)) == changed, "saving over the mapped file");
    kr_model *again = load(KR_DTYPE_AS_STORED, false);
    CHECK(kr_params_values_hash(params_of(again)) == changed, "what was saved");
    drop_folder("m");
    CHECK(kr_params_values_hash(params_of(again)) == changed, "the removed file");
    kr_model_destroy(again);
    kr_model_destroy(model);
    end();
}

/* The format aligns nothing: a header of any length moves all tensors. Those that their type cannot read there are copied. */
static void shift_file(size_t by)
{
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors", in_folder("m"));
    file_image image = read_image(path);
    uint64_t header;
    memcpy(&header, image.data, 8);
    unsigned char *moved = malloc(image.bytes + by);
    if (!moved) exit(2);
    const uint64_t longer = header + by;
    memcpy(moved, &longer, 8);
    memcpy(moved + 8, image.data + 8, header);
    memset(moved + 8 + header, ' ', by);
    memcpy(moved + 8 + header + by, image.data + 8 + header, image.bytes - 8 - header);
    write_image(path, moved, image.bytes + by);
    free(moved);
    free(image.data);
}

TEST(weights_that_are_not_aligned_are_copied)
{
    begin();
    for (size_t by = 1; by <= 4; by++) {
        save_model(KR_DTYPE_BF16);
        kr_model *plain = load(KR_DTYPE_AS_STORED, true);
        shift_file(by);
        const size_t idle = kr_ctx_memory(ctx).live_bytes;
        kr_model *model = load(KR_DTYPE_AS_STORED, false);
        const size_t taken = kr_ctx_memory(ctx).live_bytes - idle, whole = weight_bytes(model);
        if (!kr_test_on_device(ctx))
            CHECK(by % 2 ? taken > whole : taken < whole / 20, "moved by %zu: %zu bytes of %zu", by, taken, whole);
        CHECK(kr_params_values_hash(params_of(model)) == kr_params_values_hash(params_of(plain)), "moved by %zu", by);
        kr_model_destroy(model);
        kr_model_destroy(plain);
        drop_folder("m");
    }
    end();
}

TEST(mapping_may_fail)
{
    begin();
    save_model(KR_DTYPE_BF16);
    const size_t idle = kr_ctx_memory(ctx).live_bytes;
    int failures = 0;
    for (kr_model *model = NULL; !model; failures++) {
        kr_ctx_fail_allocation(ctx, (size_t)failures + 1);
        model = kr_model_load(ctx, in_folder("m"), NULL);
        if (!model) {
            CHECK_ERROR_HAS(ctx, KR_ERR_NOMEM, "");
            CHECK(kr_ctx_memory(ctx).live_bytes == idle, "failure %d leaves memory", failures);
        }
        kr_model_destroy(model);
        if (model) break;
    }
    kr_ctx_fail_allocation(ctx, 0);
    CHECK(failures > 40, "%d allocations", failures);
    drop_folder("m");
    end();
}

/* ---- shared models ---- */

TEST(shared_models_are_saved_as_the_first)
{
    begin();
    save_model(KR_DTYPE_BF16);
    kr_model *model = load(KR_DTYPE_AS_STORED, false);
    kr_ctx *other = logging_ctx();
    const size_t idle = kr_ctx_memory(other).live_bytes;
    kr_model *shared = kr_model_share(other, model);
    CHECK(shared != NULL, "%s", kr_ctx_message(other));
    if (!kr_test_on_device(ctx))
        CHECK(kr_ctx_memory(other).live_bytes - idle < weight_bytes(model) / 20, "%zu bytes for headers",
              kr_ctx_memory(other).live_bytes - idle);
    check_same_config("shared", ctx, shared, model);
    kr_model_destroy(model); /* and with it the first user of the file's map */
    CHECK(kr_model_save(shared, in_folder("s"), NULL) == KR_OK, "%s", kr_ctx_message(other));
    CHECK(same_file("m", "s", "model.safetensors") && same_file("m", "s", "config.json"), "saved");
    kr_model_destroy(shared);
    CHECK(!kr_model_share(other, NULL), "NULL");
    CHECK_ERROR(other, KR_ERR_ARG, "model.share: model is NULL");
    kr_ctx_destroy(other);
    drop_folder("m");
    drop_folder("s");
    end();
}

TEST(sharing_a_model_may_fail)
{
    begin();
    save_model(KR_DTYPE_F32);
    kr_model *model = load(KR_DTYPE_AS_STORED, false), *shared = NULL;
    kr_ctx *other = logging_ctx();
    const size_t idle = kr_ctx_memory(other).live_bytes;
    int failures = 0;
    for (;; failures++) {
        kr_ctx_fail_allocation(other, (size_t)failures + 1);
        if ((shared = kr_model_share(other, model))) break;
        CHECK_ERROR_HAS(other, KR_ERR_NOMEM, "");
        CHECK(kr_ctx_memory(other).live_bytes == idle, "failure %d leaves memory", failures);
    }
    kr_ctx_fail_allocation(other, 0);
    CHECK(failures > 20, "%d allocations", failures);
    kr_model_destroy(shared);
    kr_ctx_destroy(other);
    kr_model_destroy(model);
    drop_folder("m");
    end();
}

/* The size of a model of 130 M parameters: its layers, with this width. */
static kr_model *deep_model(kr_ctx *own, int64_t width, kr_dtype dtype, bool packed)
{
    kr_model_config *config = kr_model_config_create(own);
    kr_model_config_set_d_model(config, width);
    config->layers->n_layers = 24;
    config->network->vocab_size = 32 * width;
    config->mamba2->state_rank = config->mamba2->per_head_dim = 4;
    config->mamba2->dtype = dtype;
    kr_model *model = kr_model_create(own, config);
    kr_model_config_destroy(config);
    if (packed) CHECK(kr_params_pack(params_of(model)) == KR_OK, "%s", kr_ctx_message(own));
    return model;
}

/* All that a second context has and ever had, with a handle of the model. */
static kr_memory_stats cost_of_sharing(int64_t width, kr_dtype dtype, bool packed)
{
    kr_ctx *own = kr_test_ctx(1, NULL);
    kr_model *model = deep_model(own, width, dtype, packed);
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.threads = 1;
    kr_ctx *other = kr_ctx_create(&options);
    kr_model *shared = kr_model_share(other, model);
    CHECK_OK(other);
    const kr_memory_stats memory = kr_ctx_memory(other);
    kr_model_destroy(shared);
    kr_ctx_destroy(other);
    kr_model_destroy(model);
    kr_ctx_destroy(own);
    return memory;
}

/* A second context has headers only: the same bytes whatever the widths, the type and packed copies, so those of a model of
 * 130 M parameters. */
TEST(a_second_context_costs_little)
{
    const kr_memory_stats first = cost_of_sharing(8, KR_DTYPE_F32, false);
    CHECK(first.peak_bytes < 256 * 1024, "%zu bytes, %zu at most", first.live_bytes, first.peak_bytes);
    CHECK(first.live_blocks < 400, "%zu blocks", first.live_blocks);
    for (int i = 1; i < 8; i++) {
        const kr_memory_stats other =
            cost_of_sharing(i & 1 ? 24 : 8, i & 2 ? KR_DTYPE_BF16 : KR_DTYPE_F32, (i & 4) != 0);
        CHECK(other.live_bytes == first.live_bytes && other.peak_bytes == first.peak_bytes &&
                  other.live_blocks == first.live_blocks,
              "variant %d: %zu bytes, %zu at most, in %zu blocks, not %zu, %zu, %zu", i, other.live_bytes,
              other.peak_bytes, (size_t)other.live_blocks, first.live_bytes, first.peak_bytes,
              (size_t)first.live_blocks);
    }
}
