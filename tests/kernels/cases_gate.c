/* cases_gate.c - cases of the gate x silu(z) on rows of any stride, and of its gradients. */
#include "tests/kernels/conformance.h"

kr_cases_fn kr_cases_gate, kr_cases_gate_bwd;

typedef struct gate {
    int64_t no, ni;
    bool many_tasks;
} gate;

/* Vectors of 8 and 16; a row is split into pieces of 4096 channels, a task is 16384 elements. */
static const gate shapes[] = {
    { 0, 8, false },  { 3, 0, false },  { 1, 1, false },    { 5, 1, false },   { 2, 7, false },   { 3, 8, false },
    { 2, 9, false },  { 3, 15, false }, { 4, 16, false },   { 3, 17, false },  { 2, 31, false },  { 7, 33, false },
    { 2, 64, false }, { 3, 65, false }, { 2, 4099, false }, { 300, 67, true }, { 9, 4100, true }, { 1, 40003, true },
};
enum { NSHAPES = (int)(sizeof shapes / sizeof *shapes) };

/* Row layouts of an operand: contiguous, strided, in reverse order, or all the same row. */
enum { TIGHT, STRIDED, REVERSE, SAME, LAYOUTS };
static const char *const layout_names[LAYOUTS] = { "tight", "apart", "reverse", "same" };

static kr_extent lay_out(gate n, int layout, int64_t gap, int64_t *stride)
{
    *stride = layout == SAME ? 0 : n.ni + (layout == TIGHT ? 0 : gap);
    if (n.no * n.ni == 0) return (kr_extent){ 0, 0 };
    kr_extent extent = { (n.no - 1) * *stride + n.ni, 0 };
    if (layout == REVERSE) {
        extent.first = (n.no - 1) * *stride;
        *stride = -*stride;
    }
    return extent;
}

static void put_specials(double *z, int64_t count)
{
    for (int64_t i = 0; i < count; i++) z[i] = kr_to_float(kr_specials[i % kr_nspecials]);
}

static void first_row(void *args)
{
    kr_gate_args *a = args;
    if (a->no > 0) a->no = 1;
}

static void gate_case(kr_sweep *sweep, gate n, int x_layout, int z_layout, bool special)
{
    kr_gate_args a = { .no = n.no, .ni = n.ni, .y.row = n.ni };
    kr_case c;
    case_begin(&c, &a, sizeof a, "[%lld, %lld], x %s, z %s%s", (long long)n.no, (long long)n.ni, layout_names[x_layout],
               layout_names[z_layout], special ? ", special values" : "");
    case_walk_input(&c, OPERAND(kr_gate_args, x), lay_out(n, x_layout, 5, &a.x.row), -2, 2);
    const kr_extent at = lay_out(n, z_layout, n.ni + 1, &a.z.row);
    double *z = case_walk_input(&c, OPERAND(kr_gate_args, z), at, -9, 9);
    if (special) put_specials(z, at.count);
    case_output(&c, OPERAND(kr_gate_args, y), KR_SHAPE(n.no, n.ni));
    c.many_tasks = n.many_tasks;
    c.first_row = first_row;
    case_done(sweep, &c);
}

void kr_cases_gate(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++)
        for (int layout = 0; layout < LAYOUTS * LAYOUTS; layout++)
            if (!shapes[i].many_tasks || layout % (kr_test_quick() ? 10 : 5) == 0)
                gate_case(sweep, shapes[i], layout / LAYOUTS, layout % LAYOUTS, false);
    gate_case(sweep, (gate){ 5, 3 * kr_nspecials, false }, TIGHT, TIGHT, true);
    gate_case(sweep, (gate){ 5, kr_nspecials - 1, false }, STRIDED, STRIDED, true);
}

static void first_row_bwd(void *args)
{
    kr_gate_bwd_args *a = args;
    if (a->no > 0) a->no = 1;
}

/* wanted: bits 1 g_x, 2 g_z */
static void gate_bwd_case(kr_sweep *sweep, gate n, const int layout[3], int wanted, bool special)
{
    kr_gate_bwd_args a = { .no = n.no, .ni = n.ni, .g_x.row = n.ni, .g_z.row = n.ni };
    kr_case c;
    case_begin(&c, &a, sizeof a, "[%lld, %lld], x %s, z %s, g_y %s, wanted %d%s", (long long)n.no, (long long)n.ni,
               layout_names[layout[0]], layout_names[layout[1]], layout_names[layout[2]], wanted,
               special ? ", special values" : "");
    const kr_extent at_x = lay_out(n, layout[0], 5, &a.x.row), at_z = lay_out(n, layout[1], n.ni + 1, &a.z.row),
                    at_g = lay_out(n, layout[2], 3, &a.g_y.row);
    const double *x = case_walk_input(&c, OPERAND(kr_gate_bwd_args, x), at_x, -2, 2);
    double *z = case_walk_input(&c, OPERAND(kr_gate_bwd_args, z), at_z, -9, 9);
    const double *g_y = case_walk_input(&c, OPERAND(kr_gate_bwd_args, g_y), at_g, -1, 1);
    if (special) put_specials(z, at_z.count);
    if (wanted & 1) {
        case_output(&c, OPERAND(kr_gate_bwd_args, g_x), KR_SHAPE(n.no, n.ni));
        case_scale(&c); /* 0: relative to the result alone */
    }
    if (wanted & 2) {
        case_output(&c, OPERAND(kr_gate_bwd_args, g_z), KR_SHAPE(n.no, n.ni));
        double *scale = case_scale(&c);
        for (int64_t o = 0; o < n.no; o++)
            for (int64_t i = 0; i < n.ni; i++)
                scale[o * n.ni + i] = fabs(x[at_x.first + o * a.x.row + i] * g_y[at_g.first + o * a.g_y.row + i]);
    }
    c.many_tasks = n.many_tasks;
    c.first_row = first_row_bwd;
    case_done(sweep, &c);
}

void kr_cases_gate_bwd(kr_sweep *sweep)
{
    for (int i = 0; i < NSHAPES; i++)
        for (int index = 0; index < (!shapes[i].many_tasks ? 16 : kr_test_quick() ? 2 : 4); index++) {
            const int layout[3] = { index % LAYOUTS, (index + index / LAYOUTS) % LAYOUTS, (2 * index + i) % LAYOUTS };
            gate_bwd_case(sweep, shapes[i], index == 0 ? (const int[3]){ TIGHT, TIGHT, TIGHT } : layout,
                          index < 4 ? 3 : 1 + index % 3, false);
        }
    for (int layout = 0; layout < 2; layout++)
        gate_bwd_case(sweep, (gate){ 5, 3 * kr_nspecials + layout, false }, (const int[3]){ layout, layout, layout }, 3,
                      true);
}
