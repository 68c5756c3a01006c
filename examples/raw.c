/* raw.c - kernels on this program's memory: the SSD core of Mamba-2 on a sequence, on the same sequence token by token with
 * the state in place, and its gradients against a difference quotient. */
#include <krait/krait.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { B = 2, S = 40, H = 4, P = 8, G = 1, R = 16, WIDTH = H * P + 2 * G * R };

/* The views of KR_RAW_SSD and of its backward op, of which only some are given here. */
enum { V, BB, CC, DA, W, INITIAL = 7, Y = 12, FINAL = 13, NVIEWS = 14 };
enum { G_Y = 11, G_V = 13, G_DA = 16, NBACKWARD = 24 };

/* x, B and C are parts of one projection, as in a block: their rows are WIDTH floats apart. */
static float projection[B][S][WIDTH], dt[B][S][H], da[B][S][H];
static float y[B][S][H][P], state[B][H][P][R];
static float y_of_step[B][1][H][P], g_y[B][S][H][P], g_v[B][S][H][P], g_da[B][S][H];

static kr_view floats(kr_shape shape, float *data)
{
    return kr_view_contiguous(KR_DTYPE_F32, shape, data);
}

/* Channels of `count` tokens of the projection, from token s on. */
static kr_view part(int s, int count, int channel, int64_t heads, int64_t size)
{
    kr_view view = floats(KR_SHAPE(B, count, 1, heads, size), &projection[0][s][channel]);
    view.strides[0] = (int64_t)S * WIDTH;
    view.strides[1] = WIDTH;
    return view;
}

static void set_operands(kr_view *views, int s, int count)
{
    views[V] = part(s, count, 0, H, P);
    views[BB] = part(s, count, H * P, G, R);
    views[CC] = part(s, count, H * P + G * R, G, R);
}

/* The sum of y: its gradient with respect to y is 1. */
static double run_whole(kr_ctx *ctx)
{
    kr_view views[NVIEWS] = { { 0 } };
    double sum = 0;
    set_operands(views, 0, S);
    views[DA] = floats(KR_SHAPE(B, S, H), &da[0][0][0]);
    views[W] = floats(KR_SHAPE(B, S, H), &dt[0][0][0]);
    views[Y] = floats(KR_SHAPE(B, S, 1, H, P), &y[0][0][0][0]);
    if (kr_raw_run(ctx, KR_RAW_SSD, NVIEWS, views, NULL) != KR_OK) return 0;
    for (int i = 0; i < B * S * H * P; i++) sum += (double)(&y[0][0][0][0])[i];
    return sum;
}

/* Token by token, with work memory that is taken once. The largest difference from y. */
static double run_steps(kr_ctx *ctx)
{
    static float dt_of_step[B][1][H], da_of_step[B][1][H];
    kr_view views[NVIEWS] = { { 0 } };
    kr_raw_options options;
    double most = 0;
    kr_raw_options_init(&options);
    views[DA] = floats(KR_SHAPE(B, 1, H), &da_of_step[0][0][0]);
    views[W] = floats(KR_SHAPE(B, 1, H), &dt_of_step[0][0][0]);
    views[INITIAL] = views[FINAL] = floats(KR_SHAPE(B, H, P, R), &state[0][0][0][0]);
    views[Y] = floats(KR_SHAPE(B, 1, 1, H, P), &y_of_step[0][0][0][0]);
    set_operands(views, 0, 1);
    options.work_bytes = (kr_raw_work(ctx, KR_RAW_SSD, NVIEWS, views, &options) + 63) / 64 * 64;
    options.work = aligned_alloc(64, options.work_bytes + 64);
    for (int s = 0; s < S; s++) {
        set_operands(views, s, 1);
        for (int i = 0; i < B * H; i++) {
            (&dt_of_step[0][0][0])[i] = dt[i / H][s][i % H];
            (&da_of_step[0][0][0])[i] = da[i / H][s][i % H];
        }
        if (kr_raw_run(ctx, KR_RAW_SSD, NVIEWS, views, &options) != KR_OK) break;
        for (int i = 0; i < B * H * P; i++)
            most =
                fmax(most, fabs((double)(&y_of_step[0][0][0][0])[i] - (double)(&y[i / (H * P)][s][0][0])[i % (H * P)]));
    }
    free(options.work);
    return most;
}

static void run_backward(kr_ctx *ctx)
{
    kr_view views[NBACKWARD] = { { 0 } };
    set_operands(views, 0, S);
    views[DA] = floats(KR_SHAPE(B, S, H), &da[0][0][0]);
    views[W] = floats(KR_SHAPE(B, S, H), &dt[0][0][0]);
    for (int i = 0; i < B * S * H * P; i++) (&g_y[0][0][0][0])[i] = 1;
    views[G_Y] = floats(KR_SHAPE(B, S, 1, H, P), &g_y[0][0][0][0]);
    views[G_V] = floats(KR_SHAPE(B, S, 1, H, P), &g_v[0][0][0][0]);
    views[G_DA] = floats(KR_SHAPE(B, S, H), &g_da[0][0][0]);
    if (kr_raw_run(ctx, KR_RAW_SSD_BACKWARD, NBACKWARD, views, NULL) != KR_OK)
        fprintf(stderr, "krait: %s\n", kr_ctx_message(ctx));
}

int main(void)
{
    kr_ctx_options options;
    kr_ctx_options_init(&options);
    options.device = "cpu"; /* on a GPU the views would be of device memory */
    kr_ctx *ctx = kr_ctx_create(&options);
    for (int i = 0; i < B * S * WIDTH; i++) (&projection[0][0][0])[i] = (float)sin(0.7 * i);
    for (int i = 0; i < B * S * H; i++) {
        (&dt[0][0][0])[i] = 0.05f + 0.01f * (float)(i % 5);
        (&da[0][0][0])[i] = -(&dt[0][0][0])[i] * (float)(1 + i % H);
    }
    printf("%s\n", kr_raw_signature(KR_RAW_SSD));
    const double sum = run_whole(ctx), difference = run_steps(ctx);
    printf("token by token: differs by %.1e\n", difference);

    run_backward(ctx);
    const float step = 0.01f;
    da[0][10][1] += step;
    const double quotient = (run_whole(ctx) - sum) / (double)step;
    printf("gradient of a log-decay: %.3f, by a difference %.3f\n", (double)g_da[0][10][1], quotient);
    if (kr_ctx_failed(ctx)) fprintf(stderr, "krait: %s\n", kr_ctx_message(ctx));
    const bool failed = kr_ctx_failed(ctx) || !(difference < 1e-5) ||
                        !(fabs(quotient - (double)g_da[0][10][1]) < 0.02 * fmax(1, fabs(quotient)));
    kr_ctx_destroy(ctx);
    return failed;
}
