/* test_programs.c - random programs with shared parts, scopes and checkpoints: the slope along a random direction against
 * a difference quotient, the same gradients with and without checkpoints, and no leak.
 */
#include "tests/harness.h"

enum { SIDE = 8, ELEMENTS = SIDE * SIDE, BYTES = ELEMENTS * 8 };
enum { NLEAVES = 3, ALL = NLEAVES * ELEMENTS, MAX_STEPS = 40 };

/* A program is its seed and length; the same draws make the same steps. outer is what it reaches besides its inputs. */
typedef struct program {
    uint64_t seed;
    int nsteps, nouter;
    bool checkpoints;
    bool cuts; /* some steps stop the gradient: the slope is not the difference quotient's then */
    kr_tensor *outer[MAX_STEPS + NLEAVES];
} program;

/* Programs behind checkpoints must last until the backward pass is over. */
enum { POOL = 4096 };
static program pool[POOL];
static int npool;

static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % below;
}

/* One step: a matrix out of two earlier ones. */
static kr_tensor *step(kr_tape *t, uint64_t kind, bool cuts, kr_tensor *a, kr_tensor *b)
{
    kr_tensor *parts[2];
    kr_scope scope;
    switch (kind) {
    case 0: return kr_scale(t, kr_add(t, a, b), 0.75);
    case 1: return kr_mul(t, kr_tanh(t, a), b);
    case 2: return kr_sin(t, a);
    case 3: return kr_scale(t, kr_matmul(t, kr_tanh(t, a), b), 0.3);
    case 4: return kr_transpose(t, a);
    case 5: return kr_sub(t, kr_scale(t, kr_flip(t, a, 0), 0.5), cuts ? kr_detach(t, b) : b);
    case 6:
        kr_split(t, a, 1, 2, (const int64_t[]){ 3, SIDE - 3 }, parts);
        return kr_concat(t, 1, 2, (kr_tensor *[]){ parts[1], parts[0] });
    case 7: return kr_softmax(t, kr_add(t, a, kr_mean(t, b, KR_AXES(0), false)), 0);
    case 8: return kr_expand(t, kr_sum(t, kr_scale(t, a, 0.2), KR_AXES(1), true), KR_SHAPE(SIDE, SIDE));
    case 9: return kr_reshape(t, kr_rms_norm(t, kr_reshape(t, b, KR_SHAPE(4, -1)), NULL, NULL), KR_SHAPE(SIDE, SIDE));
    case 10: return kr_contiguous(t, kr_permute(t, b, KR_AXES(1, 0)));
    default:
        if (!cuts) return kr_div(t, a, kr_affine(t, kr_mul(t, b, b), 1, 2));
        scope = kr_no_grad_begin(t);
        b = kr_exp(t, kr_sin(t, b));
        kr_no_grad_end(t, scope, KR_KEEP(&b));
        return kr_mul(t, a, kr_sigmoid(t, b));
    }
}

static void run_steps(kr_tape *t, void *user, kr_tensor *const *in, kr_tensor **out);

/* Steps over the inputs and what was made of them; some are programs of their own, behind a checkpoint if so asked. */
static kr_tensor *run_program(kr_tape *t, const program *p, kr_tensor *const *in, int n_in)
{
    kr_tensor *made[MAX_STEPS + NLEAVES];
    uint64_t state = p->seed;
    int count = 0;
    for (int i = 0; i < n_in; i++) made[count++] = in[i];
    for (int i = 0; i < p->nsteps; i++) {
        kr_tensor *a = made[draw(&state, (uint64_t)count)], *b = made[draw(&state, (uint64_t)count)], *y = NULL;
        const uint64_t kind = draw(&state, 15), seed = draw(&state, 1u << 30);
        if (p->nouter && draw(&state, 4) == 0) b = p->outer[draw(&state, (uint64_t)p->nouter)];
        if (kind >= 12 && p->nsteps > 3 && npool < POOL) {
            program *inner = &pool[npool++];
            *inner = (program){
                .seed = seed, .nsteps = p->nsteps / 3, .nouter = count, .checkpoints = p->checkpoints, .cuts = p->cuts
            };
            memcpy(inner->outer, made, (size_t)count * sizeof *made);
            if (p->checkpoints) kr_checkpoint(t, run_steps, inner, 2, (kr_tensor *[]){ a, b }, 1, &y);
            else run_steps(t, inner, (kr_tensor *[]){ a, b }, &y);
        } else y = step(t, kind % 12, p->cuts, a, b);
        made[count++] = y;
    }
    kr_tensor *sum = made[count - 1];
    for (int i = n_in; i < count - 1; i += 2) sum = kr_add(t, sum, made[i]);
    return sum;
}

static void run_steps(kr_tape *t, void *user, kr_tensor *const *in, kr_tensor **out)
{
    out[0] = run_program(t, user, in, 2);
}

static kr_tensor *leaf(kr_tape *t, const double *values)
{
    return kr_input(t, kr_view_data(t, KR_DTYPE_F64, KR_SHAPE(SIDE, SIDE), NULL, values));
}

/* Loss and, if g is given, gradients of all leaves. */
static double run(kr_ctx *ctx, const program *p, const double *x, double *g)
{
    kr_tape *t = kr_tape_create(ctx, g ? KR_TAPE_GRAD : KR_TAPE_NO_GRAD);
    npool = 0;
    kr_tensor *leaves[NLEAVES];
    for (int i = 0; i < NLEAVES; i++) leaves[i] = leaf(t, x + i * ELEMENTS);
    kr_tensor *loss = kr_mean(t, run_program(t, p, leaves, NLEAVES), KR_ALL_AXES, false);
    const size_t forward = kr_tape_bytes(t);
    if (g && kr_requires_grad(loss)) kr_backward(t, loss);
    CHECK(!kr_ctx_failed(ctx) && npool < POOL, "program %llu: %s", (unsigned long long)p->seed, kr_ctx_message(ctx));
    int nreached = 0;
    for (int i = 0; g && i < NLEAVES; i++) {
        memset(g + i * ELEMENTS, 0, BYTES);
        if (!kr_grad(leaves[i])) continue;
        kr_tensor_read(kr_grad(leaves[i]), KR_DTYPE_F64, g + i * ELEMENTS, ELEMENTS);
        nreached++;
    }
    /* each gradient is at most its elements, two headers and their rounding */
    CHECK(kr_tape_bytes(t) - forward <= (size_t)nreached * (BYTES + 1024), "program %llu leaves %zu bytes behind",
          (unsigned long long)p->seed, kr_tape_bytes(t) - forward);
    const double value = kr_item(loss);
    kr_tape_destroy(t);
    return value;
}

static void check_program(kr_ctx *ctx, const program *p)
{
    double x[ALL], way[ALL], g[ALL], again[ALL];
    for (int i = 0; i < ALL; i++) {
        x[i] = kr_test_uniform(-1, 1);
        way[i] = kr_test_uniform(-1, 1);
    }
    const double value = run(ctx, p, x, g), h = 1e-5;
    double slope = 0, at[5] = { 0 };
    for (int i = 0; i < ALL; i++) slope += g[i] * way[i];
    for (int place = -2; place <= 2; place++) {
        double moved[ALL];
        for (int i = 0; i < ALL; i++) moved[i] = x[i] + place * h * way[i];
        at[place + 2] = run(ctx, p, moved, NULL);
    }
    /* five points: the error is h^4 / 30 of the fifth derivative, small even where steps upon steps bend sharply */
    const double quotient = (8 * (at[3] - at[1]) - (at[4] - at[0])) / (12 * h), scale = 1 + fabs(slope) + fabs(value);
    CHECK(p->cuts || fabs(slope - quotient) <= 1e-6 * scale, "program %llu: slope %.9g, difference quotient %.9g",
          (unsigned long long)p->seed, slope, quotient);
    program other = *p;
    other.checkpoints = true;
    CHECK(run(ctx, &other, x, again) == value, "program %llu: checkpoints change the loss",
          (unsigned long long)p->seed);
    for (int i = 0; i < ALL; i++)
        if (!CHECK(fabs(again[i] - g[i]) <= 1e-12 * scale,
                   "program %llu: checkpoints change gradient %d: %.17g, %.17g without", (unsigned long long)p->seed, i,
                   again[i], g[i]))
            return;
}

TEST(random_programs)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    for (int i = 0; i < (kr_test_quick() ? 40 : 300); i++) {
        const program p = { .seed = kr_test_next() >> 20, .nsteps = (int)(1 + kr_test_below(24)), .cuts = i % 3 == 0 };
        check_program(ctx, &p);
    }
    kr_ctx_destroy(ctx);
}
