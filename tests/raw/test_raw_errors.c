/* test_raw_errors.c - what raw ops refuse, with the whole sentence; and that nothing is written then. */
#include "device/device.h"
#include "tests/raw/raw_case.h"

enum { NB = 2, NS = 6, NM = 1, NH = 4, NP = 3, NG = 2, NR = 5, SSD_VIEWS = 14 };
enum { V, B, C, DA, W, DIAG_WEIGHT, D, INITIAL, CARRY, BOUNDARY, BOUNDARY_V, BOUNDARY_B, Y, FINAL };

static kr_ctx *ctx;
static kr_tape *t;
static kr_view views[TERMS];
static kr_tensor *y;
static kr_raw_options options;

static kr_view zeros(kr_dtype dtype, kr_shape shape)
{
    return kr_view_contiguous(dtype, shape, kr_tensor_data(kr_zeros(t, dtype, shape)));
}

#define FLOATS(...) zeros(KR_DTYPE_F32, KR_SHAPE(__VA_ARGS__))

static void begin(void)
{
    ctx = kr_test_ctx(1, NULL);
    t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

/* Valid views and options of an SSD core. */
static void begin_ssd(void)
{
    kr_tape_reset(t);
    memset(views, 0, sizeof views);
    views[V] = FLOATS(NB, NS, NM, NH, NP);
    views[B] = FLOATS(NB, NS, NM, NG, NR);
    views[C] = FLOATS(NB, NS, NM, NG, NR);
    views[DA] = FLOATS(NB, NS, NH);
    y = kr_full(t, KR_DTYPE_F32, KR_SHAPE(NB, NS, NM, NH, NP), 7);
    views[Y] = kr_view_contiguous(KR_DTYPE_F32, KR_SHAPE(NB, NS, NM, NH, NP), kr_tensor_data(y));
    views[FINAL] = FLOATS(NB, NH, NP, NR);
    kr_raw_options_init(&options);
}

/* Runs with what `change` made of the views; the error is this, kr_raw_work gives it as well, and y is as it was. */
static void refused(kr_status status, const char *text, bool in_work)
{
    if (in_work) {
        CHECK(kr_raw_work(ctx, KR_RAW_SSD, SSD_VIEWS, views, &options) == 0, "work of what is refused");
        CHECK_ERROR(ctx, status, text);
    }
    CHECK(kr_raw_run(ctx, KR_RAW_SSD, SSD_VIEWS, views, &options) == status, "not refused: %s", text);
    CHECK_ERROR(ctx, status, text);
    CHECK(kr_tensor_at(y, (int64_t[]){ 0, 0, 0, 0, 0 }) == 7, "y was written");
}
#define REFUSED(status, text, ...)                                                                                     \
    do {                                                                                                               \
        begin_ssd();                                                                                                   \
        __VA_ARGS__;                                                                                                   \
        refused((status), (text), true);                                                                               \
    } while (0)
#define REFUSED_MEMORY(status, text, ...)                                                                              \
    do {                                                                                                               \
        begin_ssd();                                                                                                   \
        __VA_ARGS__;                                                                                                   \
        refused((status), (text), false);                                                                              \
    } while (0)

#define SSD_TEXT                                                                                                       \
    "ssd v:bsmhp b:bsmgr c:bsmgr da:bsh w:bsh? diag_weight:bsh? d:h? initial:qhpr? carry:bsh? boundary:qh? "           \
    "boundary_v:qmhp? boundary_b:qmhr? -> y:bsmhp final:qhpr?"

TEST(raw_signatures_are_those_of_the_header)
{
    CHECK(strcmp(kr_raw_signature(KR_RAW_SSD), SSD_TEXT) == 0, "%s", kr_raw_signature(KR_RAW_SSD));
    CHECK(!kr_raw_signature((kr_raw_op)-1) && !kr_raw_signature((kr_raw_op)99), "signatures of no op");
    char path[400], *header = malloc(1 << 16);
    snprintf(path, sizeof path, "%s/include/krait/raw.h", KR_SOURCE_DIR);
    FILE *file = fopen(path, "r");
    if (!header || !file) exit(2);
    header[fread(header, 1, (1 << 16) - 1, file)] = '\0';
    fclose(file);
    char *to = header; /* lines of a comment as one line */
    for (const char *from = header; *from;) {
        const size_t skip = strncmp(from, "\n     *  ", 9) == 0 ? 8 + strspn(from + 8, " ") : 0;
        if (skip) *to++ = ' ', from += skip;
        else *to++ = *from++;
    }
    *to = '\0';
    for (int op = 0; op <= KR_RAW_SSD_ROTARY_BACKWARD; op++)
        CHECK(strstr(header, kr_raw_signature((kr_raw_op)op)) != NULL, "raw.h lacks: %s",
              kr_raw_signature((kr_raw_op)op));
    free(header);
}

TEST(raw_calls_are_checked)
{
    begin();
    begin_ssd();
    CHECK(kr_raw_run(NULL, KR_RAW_SSD, SSD_VIEWS, views, NULL) == KR_ERR_NOMEM, "no context");
    CHECK(kr_raw_work(NULL, KR_RAW_SSD, SSD_VIEWS, views, NULL) == 0, "no context");
    CHECK(kr_raw_run(ctx, (kr_raw_op)99, SSD_VIEWS, views, NULL) == KR_ERR_ARG, "no op");
    CHECK_ERROR(ctx, KR_ERR_ARG, "raw: 99 is not a kr_raw_op");
    CHECK(kr_raw_run(ctx, KR_RAW_SSD, 13, views, NULL) == KR_ERR_ARG, "13 views");
    CHECK_ERROR(ctx, KR_ERR_ARG, "raw ssd: 13 views, but it takes 14: " SSD_TEXT);
    CHECK(kr_raw_run(ctx, KR_RAW_SSD, SSD_VIEWS, NULL, NULL) == KR_ERR_ARG, "no views");
    CHECK_ERROR(ctx, KR_ERR_ARG, "raw ssd: views is NULL");
    kr_ctx_fail(ctx, KR_ERR_IO, "an earlier error");
    CHECK(kr_raw_run(ctx, KR_RAW_SSD, SSD_VIEWS, views, NULL) == KR_ERR_IO, "a failed context");
    CHECK_ERROR(ctx, KR_ERR_IO, "an earlier error");
    CHECK(kr_raw_run(ctx, KR_RAW_SSD, SSD_VIEWS, views, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    CHECK(kr_tensor_at(y, (int64_t[]){ 0, 0, 0, 0, 0 }) == 0, "y of zeros");
    end();
}

TEST(raw_sizes_are_checked)
{
    begin();
    REFUSED(KR_ERR_SHAPE, "raw ssd: axis h of da [2, 6, 3] is 3, but v [2, 6, 1, 4, 3] says h = 4",
            views[DA] = FLOATS(NB, NS, 3));
    REFUSED(KR_ERR_SHAPE, "raw ssd: c [2, 6, 2, 5] has rank 4, but must have 5 (axes bsmgr)",
            views[C] = FLOATS(NB, NS, NG, NR));
    REFUSED(KR_ERR_SHAPE, "raw ssd: axis p of y [2, 6, 1, 4, 4] is 4, but v [2, 6, 1, 4, 3] says p = 3",
            views[Y] = FLOATS(NB, NS, NM, NH, 4));
    REFUSED(KR_ERR_SHAPE, "raw ssd: axis q of final [3, 4, 3, 5] is 3, but there are 2 sequences",
            views[FINAL] = FLOATS(3, NH, NP, NR));
    REFUSED(KR_ERR_SHAPE, "raw ssd: g = 3 groups of b [2, 6, 1, 3, 5] do not divide h = 4 heads",
            views[B] = FLOATS(NB, NS, NM, 3, NR), views[C] = FLOATS(NB, NS, NM, 3, NR));
    REFUSED(KR_ERR_SHAPE, "raw ssd: v has rank 9, but it must be from 0 to 8", views[V].rank = 9);
    REFUSED(KR_ERR_SHAPE, "raw ssd: v has rank -1, but it must be from 0 to 8", views[V].rank = -1);
    REFUSED(KR_ERR_SHAPE,
            "raw ssd: da [2, -6, 4] is no shape: sizes must not be negative, and all elements addressable",
            views[DA].dims[1] = -6);
    REFUSED(
        KR_ERR_SHAPE,
        "raw ssd: da [9223372036854775807, 6, 4] is no shape: sizes must not be negative, and all elements addressable",
        views[DA].dims[0] = INT64_MAX);
    REFUSED(KR_ERR_SHAPE,
            "raw ssd: v [2, 6, 1, 4, 3] has strides [9223372036854775807, 12, 12, 3, 1], which reach beyond all memory",
            views[V].strides[0] = INT64_MAX);
    REFUSED(
        KR_ERR_SHAPE,
        "raw ssd: v [2, 6, 1, 4, 3] has strides [72, -9223372036854775808, 12, 3, 1], which reach beyond all memory",
        views[V].strides[1] = INT64_MIN);
    REFUSED(KR_ERR_ARG, "raw ssd: v is absent (its data is NULL); what may be has a ?: " SSD_TEXT,
            views[V].data = NULL);
    REFUSED(KR_ERR_ARG, "raw ssd: y is absent (its data is NULL); what may be has a ?: " SSD_TEXT,
            views[Y].data = NULL);
    REFUSED(KR_ERR_SHAPE, "raw ssd: v [2, 0, 1, 4, 3] and b [2, 0, 1, 2, 5] have an empty axis",
            views[V] = FLOATS(NB, 0, NM, NH, NP), views[B] = views[C] = FLOATS(NB, 0, NM, NG, NR),
            views[DA] = FLOATS(NB, 0, NH), views[Y] = FLOATS(NB, 0, NM, NH, NP));
    REFUSED(KR_ERR_ARG, "raw ssd: boundary, boundary_v and boundary_b are given in part; give all three or none",
            views[BOUNDARY] = FLOATS(NB, NH));
    REFUSED(KR_ERR_ARG, "raw ssd: carry is given, which needs w and diag_weight", views[CARRY] = FLOATS(NB, NS, NH));
    end();
}

TEST(raw_types_are_checked)
{
    begin();
    REFUSED(KR_ERR_DTYPE, "raw ssd: dtype 17 of da [2, 6, 4] is not a kr_dtype", views[DA].dtype = (kr_dtype)17);
    REFUSED(KR_ERR_DTYPE, "raw ssd: da [2, 6, 4] is i32, but must be f32 or f64", views[DA].dtype = KR_DTYPE_I32);
    REFUSED(
        KR_ERR_DTYPE,
        "raw ssd: da [2, 6, 4] is f64, but v [2, 6, 1, 4, 3] is f32; f64 mixes with no other type, convert one of them",
        views[DA] = zeros(KR_DTYPE_F64, KR_SHAPE(NB, NS, NH)));
    begin_ssd();
    char text[300];
    snprintf(text, sizeof text,
             "raw ssd: da [2, 6, 4] is bf16, which the kernel of %s does not take there; convert it to f32",
             kr_ctx_device(ctx));
    REFUSED(KR_ERR_DTYPE, text, views[DA] = zeros(KR_DTYPE_BF16, KR_SHAPE(NB, NS, NH)));
    if (!kr_accepts(ctx, ssd_v, KR_DTYPE_F16)) {
        snprintf(text, sizeof text,
                 "raw ssd: v [2, 6, 1, 4, 3] is f16, which the kernel of %s does not take there; convert it to f32",
                 kr_ctx_device(ctx));
        REFUSED(KR_ERR_DTYPE, text, views[V] = zeros(KR_DTYPE_F16, KR_SHAPE(NB, NS, NM, NH, NP)));
    }
    end();
}

TEST(raw_strides_are_checked)
{
    begin();
    REFUSED(KR_ERR_SHAPE,
            "raw ssd: da [2, 6, 4] has strides [24, 1, 6], but the kernel reads it row-major without gaps; use a copy",
            views[DA].strides[1] = 1, views[DA].strides[2] = 6);
    REFUSED(KR_ERR_SHAPE,
            "raw ssd: v [2, 6, 1, 4, 3] has strides [72, 12, 12, 1, 4], but the kernel reads tokens whose elements are "
            "row-major without gaps, and all tokens at one distance; use a copy",
            views[V].strides[3] = 1, views[V].strides[4] = 4);
    REFUSED(KR_ERR_SHAPE,
            "raw ssd: v [2, 6, 1, 4, 3] has strides [12, 24, 12, 3, 1], but the kernel reads tokens whose elements are "
            "row-major without gaps, and all tokens at one distance; use a copy",
            views[V].strides[0] = 12, views[V].strides[1] = 24);
    REFUSED(
        KR_ERR_SHAPE,
        "raw ssd: y [2, 6, 1, 4, 3] has strides [144, 24, 12, 3, 1], but the kernel writes it row-major without gaps; "
        "use a copy",
        views[Y].strides[0] = 144, views[Y].strides[1] = 24);
    /* other ops' layouts */
    kr_raw_options_init(&options);
    kr_view gate[3] = { FLOATS(4, 6), FLOATS(4, 6), FLOATS(4, 6) };
    gate[1].strides[0] = 1;
    gate[1].strides[1] = 4;
    CHECK(kr_raw_run(ctx, KR_RAW_GATE, 3, gate, NULL) == KR_ERR_SHAPE, "columns");
    CHECK_ERROR(
        ctx, KR_ERR_SHAPE,
        "raw gate: z [4, 6] has strides [1, 4], but the kernel reads adjacent elements along its last axis, and all "
        "rows at one distance; use a copy");
    kr_view conv[6] = { FLOATS(2, 5, 3), FLOATS(3, 4), { .data = NULL }, { .data = NULL }, FLOATS(2, 5, 3) };
    conv[0].strides[1] = 1;
    conv[0].strides[2] = 5;
    CHECK(kr_raw_run(ctx, KR_RAW_CONV, 6, conv, NULL) == KR_ERR_SHAPE, "channels first");
    CHECK_ERROR(ctx, KR_ERR_SHAPE,
                "raw conv: x [2, 5, 3] has strides [15, 1, 5], but the kernel reads adjacent channels; use a copy");
    kr_view trapezoid[9] = { FLOATS(4, 6), { .data = NULL }, FLOATS(4, 6), FLOATS(4, 8), FLOATS(4, 6) };
    trapezoid[3].dims[1] = 6;
    CHECK(kr_raw_run(ctx, KR_RAW_TRAPEZOID, 9, trapezoid, NULL) == KR_ERR_SHAPE, "three distances");
    CHECK_ERROR(
        ctx, KR_ERR_SHAPE,
        "raw trapezoid: the rows of dt_raw, a_raw and lambda_raw are 6, 6 and 8 elements apart, but the kernel reads "
        "them at one distance; use copies");
    end();
}

TEST(raw_overlaps_are_checked)
{
    begin();
    REFUSED_MEMORY(KR_ERR_ARG, "raw ssd: result y [2, 6, 1, 4, 3] overlaps v [2, 6, 1, 4, 3] in memory",
                   views[V].data = kr_tensor_data(y));
    REFUSED_MEMORY(KR_ERR_ARG, "raw ssd: result final [2, 4, 3, 5] overlaps y [2, 6, 1, 4, 3] in memory",
                   views[FINAL].data = (char *)kr_tensor_data(y) + 4);
    REFUSED_MEMORY(
        KR_ERR_ARG,
        "raw ssd: result final [2, 4, 3, 5] overlaps initial [2, 4, 3, 5] in memory; it may be the same memory, "
        "or other memory",
        views[INITIAL] = FLOATS(3, NH, NP, NR), views[INITIAL].dims[0] = NB,
        views[FINAL].data = (char *)views[INITIAL].data + 4);
    REFUSED_MEMORY(KR_ERR_ARG, "raw ssd: the address of da [2, 6, 4] is not a multiple of 4, the size of f32",
                   views[DA] = FLOATS(NB + 1, NS, NH), views[DA].dims[0] = NB,
                   views[DA].data = (char *)views[DA].data + 2);
    kr_view wide, gate[3];
    /* rows of x, between which the result lies as a whole */
    wide = FLOATS(4, 100);
    gate[0] = gate[1] = FLOATS(4, 6);
    gate[0].strides[0] = 100;
    gate[0].data = wide.data;
    gate[2] = kr_view_contiguous(KR_DTYPE_F32, KR_SHAPE(4, 6), (char *)wide.data + 110 * sizeof(float));
    CHECK(kr_raw_run(ctx, KR_RAW_GATE, 3, gate, NULL) == KR_OK, "%s", kr_ctx_message(ctx));
    gate[2].data = (char *)wide.data + 90 * sizeof(float);
    CHECK(kr_raw_run(ctx, KR_RAW_GATE, 3, gate, NULL) == KR_ERR_ARG, "a result over the second row of x");
    CHECK_ERROR(ctx, KR_ERR_ARG, "raw gate: result y [4, 6] overlaps x [4, 6] in memory");
    end();
}

/* A result of 6 elements at every place among rows of 6 that are 20 apart: refused where it would share an element. */
TEST(raw_results_may_lie_between_rows)
{
    enum { ROWS = 4, WIDTH = 6, LINE = 20 };
    begin();
    kr_view wide = FLOATS(ROWS + 1, LINE), empty = { .data = NULL };
    kr_view back[8] = { FLOATS(ROWS, WIDTH), empty, FLOATS(WIDTH), FLOATS(ROWS, 1), FLOATS(ROWS, WIDTH), empty, empty };
    back[0].data = wide.data;
    back[0].strides[0] = LINE;
    for (int at = 0; at <= ROWS * LINE; at++) {
        bool shares = false;
        for (int i = at; i < at + WIDTH; i++) shares = shares || (i < ROWS * LINE && i % LINE < WIDTH);
        back[7] = kr_view_contiguous(KR_DTYPE_F32, KR_SHAPE(WIDTH), (float *)wide.data + at);
        const bool refused = kr_raw_run(ctx, KR_RAW_NORM_BACKWARD, 8, back, NULL) != KR_OK;
        CHECK(refused == shares, "at %d: %s", at, refused ? kr_ctx_message(ctx) : "not refused");
        if (refused) CHECK_ERROR(ctx, KR_ERR_ARG, "raw norm_backward: result g_gain [6] overlaps x [4, 6] in memory");
    }
    end();
}

TEST(raw_memory_of_another_device_is_refused)
{
    begin();
    static float host[NB * NS * NH];
    if (kr_test_on_device(ctx)) {
        char text[300];
        snprintf(text, sizeof text, "raw ssd: da [2, 6, 4] is not in the memory of %s", kr_ctx_device(ctx));
        REFUSED_MEMORY(KR_ERR_ARG, text, views[DA].data = host);
        snprintf(text, sizeof text, "raw ssd: work is not in the memory of %s", kr_ctx_device(ctx));
        static _Alignas(64) char work[1 << 20]; /* more than the call needs on any device */
        REFUSED_MEMORY(KR_ERR_ARG, text, options.work = work, options.work_bytes = sizeof work,
                       views[FINAL].data = NULL);
        begin_ssd();
        options.n_sequences = 1;
        options.sequences = views[V].data;
        CHECK(kr_raw_run(ctx, KR_RAW_SSD, SSD_VIEWS, views, &options) == KR_ERR_ARG, "sequences on the device");
        CHECK_ERROR_HAS(ctx, KR_ERR_ARG, "raw ssd: sequences is not in memory that both the host and ");
    }
    end();
}

static void refused_sequences(const int64_t *list, int64_t count, const char *text)
{
    begin_ssd();
    int64_t *shared = kr_tape_list(t, (size_t)(3 * count + 3) * sizeof *shared);
    if (!shared) exit(2);
    memcpy(shared, list, (size_t)(3 * count) * sizeof *shared);
    options.sequences = shared;
    options.n_sequences = count;
    views[FINAL] = FLOATS(count, NH, NP, NR);
    refused(KR_ERR_ARG, text, true);
}

TEST(raw_sequences_are_checked)
{
    begin();
    refused_sequences(
        (int64_t[]){ 2, 0, 6 }, 1,
        "raw ssd: sequence 0 is row 2 from 0 to 6, but there are 2 rows of 6 tokens, and a sequence has at least "
        "one");
    refused_sequences(
        (int64_t[]){ 0, 0, 3, 0, 3, 7 }, 2,
        "raw ssd: sequence 1 is row 0 from 3 to 7, but there are 2 rows of 6 tokens, and a sequence has at least "
        "one");
    refused_sequences(
        (int64_t[]){ 0, 0, 3, 0, 3, 3 }, 2,
        "raw ssd: sequence 1 is row 0 from 3 to 3, but there are 2 rows of 6 tokens, and a sequence has at least "
        "one");
    refused_sequences(
        (int64_t[]){ 0, -1, 3 }, 1,
        "raw ssd: sequence 0 is row 0 from -1 to 3, but there are 2 rows of 6 tokens, and a sequence has at "
        "least one");
    refused_sequences((int64_t[]){ 0, 0, 4, 0, 3, 6 }, 2,
                      "raw ssd: sequence 1, row 0 from 3 to 6, is not behind the one before it, row 0 from 0 to 4");
    refused_sequences((int64_t[]){ 1, 0, 4, 0, 0, 6 }, 2,
                      "raw ssd: sequence 1, row 0 from 0 to 6, is not behind the one before it, row 1 from 0 to 4");
    REFUSED(KR_ERR_ARG, "raw ssd: n_sequences = 2, but sequences is NULL", options.n_sequences = 2);
    static const int64_t one[3] = { 0, 0, 6 };
    if (!kr_test_on_device(ctx)) {
        REFUSED(KR_ERR_ARG, "raw ssd: n_sequences = 0, but sequences is given", options.sequences = one);
        REFUSED(KR_ERR_ARG, "raw ssd: n_sequences = -1, but sequences is given", options.sequences = one,
                options.n_sequences = -1);
        REFUSED(KR_ERR_ARG, "raw ssd: the address of sequences is not a multiple of 8",
                options.sequences = (const int64_t *)(const void *)((const char *)one + 4), options.n_sequences = 1);
        kr_raw_options_init(&options);
        options.sequences = one;
        options.n_sequences = 1;
        kr_view angles[5] = { FLOATS(NB, NS, 3), FLOATS(NB, NS, NH), { .data = NULL }, FLOATS(NB, NS, NH, 3) };
        CHECK(kr_raw_run(ctx, KR_RAW_ANGLES, 5, angles, &options) == KR_ERR_ARG, "half of the tokens");
        CHECK_ERROR(ctx, KR_ERR_ARG,
                    "raw angles: the sequences hold 6 tokens, but there are 12, and each must be in one");
    }
    end();
}

TEST(raw_options_are_checked)
{
    begin();
    REFUSED(KR_ERR_ARG, "raw ssd: chunk_len = -1, but must not be negative", options.chunk_len = -1);
    REFUSED(KR_ERR_ARG, "raw ssd: option silu is set, but this op does not have it", options.silu = true);
    REFUSED(KR_ERR_ARG, "raw ssd: option eps is set, but this op does not have it", options.eps = 0);
    REFUSED(KR_ERR_ARG, "raw ssd: option dt_max is set, but this op does not have it", options.dt_max = 1);
    REFUSED(KR_ERR_ARG, "raw ssd: precision = 7 is not a kr_precision", options.precision = (kr_precision)7);
    REFUSED(KR_ERR_ARG,
            "raw ssd: kr_raw_options.size is 3, but the struct has 112 bytes; call kr_raw_options_init before setting "
            "fields",
            options.size = 3);
    static _Alignas(64) char work[1 << 16];
    if (!kr_test_on_device(ctx))
        REFUSED_MEMORY(KR_ERR_ARG, "raw ssd: the address of work is not a multiple of 64", options.work = work + 4,
                       options.work_bytes = sizeof work - 64);
    kr_view norm[5] = { FLOATS(3, 8), { .data = NULL }, { .data = NULL }, FLOATS(3, 8), FLOATS(3, 2) };
    kr_raw_options_init(&options);
    options.n_groups = 3;
    CHECK(kr_raw_run(ctx, KR_RAW_NORM, 5, norm, &options) == KR_ERR_ARG, "groups");
    CHECK_ERROR(ctx, KR_ERR_ARG, "raw norm: n_groups = 3 does not divide i = 8");
    options.n_groups = 4;
    CHECK(kr_raw_run(ctx, KR_RAW_NORM, 5, norm, &options) == KR_ERR_SHAPE, "groups of q");
    CHECK_ERROR(ctx, KR_ERR_SHAPE, "raw norm: axis e of q [3, 2] is 2, but n_groups = 4");
    options.n_groups = 2;
    options.norm_first = true;
    CHECK(kr_raw_run(ctx, KR_RAW_NORM, 5, norm, &options) == KR_ERR_ARG, "no gate");
    CHECK_ERROR(ctx, KR_ERR_ARG, "raw norm: norm_first is set, but z is absent");
    options.norm_first = false;
    options.eps = -1;
    CHECK(kr_raw_run(ctx, KR_RAW_NORM, 5, norm, &options) == KR_ERR_ARG, "eps");
    CHECK_ERROR(ctx, KR_ERR_ARG, "raw norm: eps = -1, but must not be negative");
    kr_view back[8] = { FLOATS(3, 8), FLOATS(3, 8), { .data = NULL }, FLOATS(3, 2), FLOATS(3, 8), FLOATS(3, 8) };
    kr_raw_options_init(&options);
    options.n_groups = 2;
    options.accumulate = true;
    CHECK(kr_raw_run(ctx, KR_RAW_NORM_BACKWARD, 8, back, &options) == KR_ERR_ARG, "a gate");
    CHECK_ERROR(ctx, KR_ERR_ARG, "raw norm_backward: accumulate is set, but with a gate z gradients are not added");
    options.accumulate = false;
    back[7] = FLOATS(8);
    CHECK(kr_raw_run(ctx, KR_RAW_NORM_BACKWARD, 8, back, &options) == KR_ERR_ARG, "no gain");
    CHECK_ERROR(ctx, KR_ERR_ARG, "raw norm_backward: g_gain is wanted, but gain is absent");
    kr_view rotate[4] = { FLOATS(1, 2, 1, 2, 7), { .data = NULL }, FLOATS(1, 2, 4, 4), FLOATS(1, 2, 1, 4, 7) };
    CHECK(kr_raw_run(ctx, KR_RAW_ROTATE, 4, rotate, NULL) == KR_ERR_SHAPE, "too many angles");
    CHECK_ERROR(ctx, KR_ERR_SHAPE, "raw rotate: a = 4 angles rotate 8 entries, but r of x [1, 2, 1, 2, 7] is 7");
    end();
}
