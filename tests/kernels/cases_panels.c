/* cases_panels.c - cases of few rows times a packed weight: outputs around panels, steps around chains, strided rows. */
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_panels;

static void first_row(void *args)
{
    kr_panels_args *a = args;
    if (a->nm > 0) a->nm = 1;
}

static void panels_case(kr_sweep *sweep, int64_t nm, int64_t nn, int64_t nk, int64_t gap, bool bias, bool many_tasks,
                        kr_dtype half)
{
    static const char *const types[] = {
        [KR_DTYPE_F32] = "", [KR_DTYPE_BF16] = ", panels of bf16", [KR_DTYPE_F16] = ", panels of f16"
    };
    kr_panels_args a = { .nm = nm, .nn = nn, .nk = nk, .x.row = nk + gap, .y.row = nn + gap };
    const kr_extent panels = { kr_panels_of(nn) * KR_PANEL * nk, 0 };
    const int64_t nx = nm > 0 && nk > 0 ? (nm - 1) * a.x.row + nk : 0,
                  ny = nm > 0 && nn > 0 ? (nm - 1) * a.y.row + nn : 0;
    kr_case c;
    case_begin(&c, &a, sizeof a, "m %lld n %lld k %lld, gap %lld%s%s", (long long)nm, (long long)nn, (long long)nk,
               (long long)gap, bias ? ", bias" : "", types[half]);
    case_walk_input(&c, OPERAND(kr_panels_args, x), (kr_extent){ nx, 0 }, -1, 1);
    if (half != KR_DTYPE_F32) case_walk_halves(&c, OPERAND(kr_panels_args, w), panels, half);
    else case_walk_input(&c, OPERAND(kr_panels_args, w), panels, -1, 1);
    if (bias) case_walk_input(&c, FIELD(kr_panels_args, bias), (kr_extent){ nn, 0 }, -1, 1);
    case_walk_output(&c, OPERAND(kr_panels_args, y), (kr_extent){ ny, 0 });
    c.terms = nk + 2;
    c.by_magnitudes = true;
    c.many_tasks = many_tasks;
    c.first_row = first_row;
    case_done(sweep, &c);
}

void kr_cases_panels(kr_sweep *sweep)
{
    static const kr_dtype dtypes[] = { KR_DTYPE_F32, KR_DTYPE_BF16, KR_DTYPE_F16 };
    static const int64_t outputs[] = { 0, 1, 63, 64, 65, 200 }, steps[] = { 0, 1, 7, 255, 256, 257, 600 };
    for (size_t n = 0; n < sizeof outputs / sizeof *outputs; n++)
        for (size_t k = 0; k < sizeof steps / sizeof *steps; k++)
            for (int64_t m = 0; m <= 4; m++)
                for (int type = 0; type < 3; type++)
                    panels_case(sweep, m, outputs[n], steps[k], m % 2 ? 0 : 3, (m + (int64_t)k) % 2 == 0, false,
                                dtypes[type]);
    panels_case(sweep, 1, 3352, 768, 0, false, true, KR_DTYPE_F32);
    panels_case(sweep, 3, 700, 1536, 5, true, true, KR_DTYPE_F16);
    panels_case(sweep, 1, 3352, 768, 0, false, true, KR_DTYPE_BF16);
}
