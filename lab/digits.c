/* digits.c - draws digits by strokes.
 *
 *   box      a digit's strokes, lines and arcs of ellipses, in -0.5 .. 0.5; x to the right, y down
 *   wobble   p += sum_q a_q sin(k_q p + phase_q), the same for all strokes, so that joined strokes stay joined
 *   pose     scale, slant (x -= slant y), rotation, shift: box to pixels
 *   ink      at distance d of the nearest stroke: strength clamp((width / 2 + edge - d) / (2 edge), 0, 1), and noise
 */
#include "lab/digits.h"
#include "lab/tasks.h"

#include <math.h>
#include <string.h>

enum { SIDE = LAB_DIGIT_SIDE, MOST_STROKES = 4, ARC_STEPS = 20, WAVES = 3 };
#define PI 3.14159265358979323846

/* ---- forms ---- */

typedef struct stroke {
    enum { NONE, LINE, ARC } kind;
    double v[6]; /* line: from x y, to x y; arc: centre x y, radii x y, degrees from and to, clockwise from the right */
} stroke;

/* Forms of a digit; at most three each, the first always present. */
static const stroke forms[LAB_DIGIT_CLASSES][3][MOST_STROKES] = {
    { { { ARC, { 0, 0, 0.30, 0.48, 0, 360 } } },
      { { ARC, { 0, 0, 0.23, 0.50, 0, 360 } } },
      { { ARC, { 0.02, 0.02, 0.31, 0.46, -80, 265 } } } },
    { { { LINE, { 0, -0.5, 0, 0.5 } } },
      { { LINE, { 0.02, -0.5, 0.02, 0.5 } }, { LINE, { -0.18, -0.28, 0.02, -0.5 } } },
      { { LINE, { 0.02, -0.5, 0.02, 0.5 } },
        { LINE, { -0.2, -0.3, 0.02, -0.5 } },
        { LINE, { -0.2, 0.5, 0.24, 0.5 } } } },
    { { { ARC, { 0, -0.22, 0.29, 0.28, 195, 400 } },
        { LINE, { 0.222, -0.04, -0.30, 0.5 } },
        { LINE, { -0.30, 0.5, 0.32, 0.5 } } },
      { { ARC, { 0, -0.22, 0.28, 0.28, 205, 405 } },
        { LINE, { 0.198, -0.02, -0.16, 0.42 } },
        { ARC, { -0.16, 0.37, 0.14, 0.11, 0, 360 } },
        { LINE, { -0.08, 0.44, 0.34, 0.5 } } },
      { { ARC, { 0, -0.20, 0.24, 0.30, 220, 420 } },
        { LINE, { 0.12, 0.06, -0.27, 0.48 } },
        { LINE, { -0.27, 0.48, 0.30, 0.42 } } } },
    { { { ARC, { 0, -0.25, 0.27, 0.25, 200, 450 } }, { ARC, { 0, 0.23, 0.31, 0.27, 270, 520 } } },
      { { LINE, { -0.26, -0.5, 0.26, -0.5 } },
        { LINE, { 0.26, -0.5, 0, -0.09 } },
        { ARC, { 0, 0.20, 0.30, 0.29, 270, 520 } } },
      { { ARC, { -0.04, -0.27, 0.24, 0.22, 215, 440 } },
        { LINE, { 0, -0.05, 0.1, -0.05 } },
        { ARC, { 0, 0.22, 0.28, 0.27, 280, 500 } } } },
    { { { LINE, { 0.10, -0.5, -0.32, 0.15 } },
        { LINE, { -0.32, 0.15, 0.34, 0.15 } },
        { LINE, { 0.12, -0.5, 0.12, 0.5 } } },
      { { LINE, { -0.25, -0.48, -0.28, 0.05 } },
        { LINE, { -0.28, 0.05, 0.32, 0.05 } },
        { LINE, { 0.2, -0.5, 0.2, 0.5 } } },
      { { ARC, { 0.02, -0.42, 0.28, 0.48, 180, 90 } }, { LINE, { 0.24, -0.5, 0.16, 0.5 } } } },
    { { { LINE, { 0.28, -0.5, -0.22, -0.5 } },
        { LINE, { -0.22, -0.5, -0.26, -0.06 } },
        { ARC, { 0, 0.17, 0.30, 0.31, 218, 520 } } },
      { { LINE, { 0.30, -0.46, -0.18, -0.5 } },
        { LINE, { -0.18, -0.5, -0.20, -0.1 } },
        { LINE, { -0.20, -0.1, 0, -0.12 } },
        { ARC, { 0, 0.18, 0.27, 0.30, 270, 510 } } } },
    { { { ARC, { 0, 0.22, 0.27, 0.27, 0, 360 } }, { ARC, { 0.25, 0.2, 0.52, 0.72, 180, 255 } } },
      { { ARC, { 0.02, 0.26, 0.23, 0.23, 0, 360 } }, { LINE, { 0.14, -0.5, -0.2, 0.2 } } } },
    { { { LINE, { -0.3, -0.5, 0.3, -0.5 } }, { LINE, { 0.3, -0.5, -0.05, 0.5 } } },
      { { LINE, { -0.28, -0.48, 0.3, -0.48 } },
        { LINE, { 0.3, -0.48, -0.08, 0.5 } },
        { LINE, { -0.12, 0.02, 0.26, 0.02 } } },
      { { ARC, { -0.02, -0.5, 0.3, 0.12, 170, 60 } }, { LINE, { 0.28, -0.5, 0.02, 0.5 } } } },
    { { { ARC, { 0, -0.25, 0.23, 0.24, 0, 360 } }, { ARC, { 0, 0.24, 0.28, 0.26, 0, 360 } } },
      { { ARC, { 0.02, -0.27, 0.20, 0.22, 0, 360 } }, { ARC, { -0.02, 0.21, 0.24, 0.28, 0, 360 } } } },
    { { { ARC, { 0, -0.22, 0.26, 0.27, 0, 360 } }, { LINE, { 0.26, -0.22, 0.2, 0.5 } } },
      { { ARC, { 0, -0.22, 0.26, 0.27, 0, 360 } }, { ARC, { -0.25, -0.2, 0.51, 0.7, 0, 75 } } },
      { { ARC, { -0.02, -0.25, 0.22, 0.24, 0, 360 } }, { LINE, { 0.2, -0.4, -0.02, 0.5 } } } },
};

static int count_forms(int digit)
{
    int n = 0;
    while (n < 3 && forms[digit][n][0].kind != NONE) n++;
    return n;
}

/* ---- handwriting parameters ---- */

typedef struct wave {
    double toward[2], along[2], phase; /* amplitude; wave vector over the box */
} wave;

typedef struct hand {
    uint64_t random;
    wave waves[WAVES];
    double pose[2][3]; /* pixel = pose [x y 1] */
    double half_width, edge, strength, noise;
} hand;

static double uniform(hand *h, double low, double high)
{
    return low + (high - low) * ((double)(lab_splitmix64(&h->random) >> 11) * 0x1p-53);
}

/* Mean 0 and deviation 1, approximately normal, within +-3.5: a sum of four uniform samples. */
static double bell(hand *h)
{
    double sum = 0;
    for (int i = 0; i < 4; i++) sum += uniform(h, -1, 1);
    return sum * 0.8660254037844386;
}

static void draw_pose(hand *h)
{
    const double height = uniform(h, 16, 22), width = height * uniform(h, 0.8, 1.2);
    const double slant = uniform(h, -0.1, 0.4), rotation = uniform(h, -0.18, 0.18);
    const double c = cos(rotation), s = sin(rotation);
    h->pose[0][0] = c * width;
    h->pose[0][1] = -c * slant * width - s * height;
    h->pose[1][0] = s * width;
    h->pose[1][1] = -s * slant * width + c * height;
    for (int i = 0; i < 2; i++) h->pose[i][2] = SIDE / 2.0 + uniform(h, -2.25, 2.25);
}

static void draw_hand(hand *h)
{
    draw_pose(h);
    for (int q = 0; q < WAVES; q++) {
        wave *w = &h->waves[q];
        for (int i = 0; i < 2; i++) {
            w->toward[i] = 0.04 * bell(h);
            w->along[i] = uniform(h, -5, 5);
        }
        w->phase = uniform(h, 0, 2 * PI);
    }
    h->half_width = uniform(h, 0.75, 1.75);
    h->edge = uniform(h, 0.45, 0.8);
    h->strength = uniform(h, 180, 255);
    h->noise = uniform(h, 0, 12);
}

static void to_pixels(const hand *h, double x, double y, double pixel[2])
{
    double at[2] = { x, y };
    for (int q = 0; q < WAVES; q++) {
        const wave *w = &h->waves[q];
        const double s = sin(w->along[0] * x + w->along[1] * y + w->phase);
        for (int i = 0; i < 2; i++) at[i] += w->toward[i] * s;
    }
    for (int i = 0; i < 2; i++) pixel[i] = h->pose[i][0] * at[0] + h->pose[i][1] * at[1] + h->pose[i][2];
}

/* ---- ink ---- */

typedef struct sheet {
    double nearest[SIDE * SIDE]; /* squared distance of each pixel's centre from a stroke */
} sheet;

static double squared_distance(const double a[2], const double b[2], double x, double y)
{
    const double ux = b[0] - a[0], uy = b[1] - a[1], vx = x - a[0], vy = y - a[1];
    const double length = ux * ux + uy * uy;
    double t = length > 0 ? (ux * vx + uy * vy) / length : 0;
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    const double dx = vx - t * ux, dy = vy - t * uy;
    return dx * dx + dy * dy;
}

/* The pixels between low - reach and high + reach. */
static void range_of(double a, double b, double reach, int *from, int *to)
{
    const double low = floor((a < b ? a : b) - reach), high = ceil((a < b ? b : a) + reach);
    *from = low < 0 ? 0 : low > SIDE ? SIDE : (int)low;
    *to = high > SIDE ? SIDE : high < 0 ? 0 : (int)high;
}

static void draw_line(sheet *s, const double a[2], const double b[2], double reach)
{
    int left, right, top, bottom;
    range_of(a[0], b[0], reach, &left, &right);
    range_of(a[1], b[1], reach, &top, &bottom);
    for (int y = top; y < bottom; y++)
        for (int x = left; x < right; x++) {
            const double d = squared_distance(a, b, x + 0.5, y + 0.5);
            if (d < s->nearest[y * SIDE + x]) s->nearest[y * SIDE + x] = d;
        }
}

static void draw_stroke(sheet *s, const hand *h, const stroke *line)
{
    const double *v = line->v, reach = h->half_width + h->edge + 1;
    double last[2], next[2];
    for (int i = 0; i <= ARC_STEPS; i++) {
        const double t = (double)i / ARC_STEPS, angle = (v[4] + t * (v[5] - v[4])) * PI / 180;
        if (line->kind == ARC) to_pixels(h, v[0] + v[2] * cos(angle), v[1] + v[3] * sin(angle), next);
        else to_pixels(h, v[0] + t * (v[2] - v[0]), v[1] + t * (v[3] - v[1]), next);
        if (i) draw_line(s, last, next, reach);
        memcpy(last, next, sizeof last);
    }
}

static void draw_digit(uint64_t seed, uint8_t *image, uint8_t *label)
{
    hand h = { .random = seed };
    const int digit = (int)(lab_splitmix64(&h.random) % LAB_DIGIT_CLASSES);
    const int form = (int)(lab_splitmix64(&h.random) % (uint64_t)count_forms(digit));
    sheet s;
    draw_hand(&h);
    for (int i = 0; i < SIDE * SIDE; i++) s.nearest[i] = SIDE * SIDE;
    for (int i = 0; i < MOST_STROKES && forms[digit][form][i].kind != NONE; i++)
        draw_stroke(&s, &h, &forms[digit][form][i]);
    for (int i = 0; i < SIDE * SIDE; i++) {
        const double depth = (h.half_width + h.edge - sqrt(s.nearest[i])) / (2 * h.edge);
        const double value = h.strength * (depth < 0 ? 0 : depth > 1 ? 1 : depth) + h.noise * bell(&h);
        image[i] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value + 0.5);
    }
    *label = (uint8_t)digit;
}

kr_status lab_digits_fill(uint64_t seed, int64_t first, int64_t count, uint8_t *images, uint8_t *labels)
{
    if (first < 0 || count < 0 || !images || !labels) return KR_ERR_ARG;
    uint64_t state = seed + (uint64_t)first * UINT64_C(0x9E3779B97F4A7C15); /* the state after `first` samples */
    for (int64_t i = 0; i < count; i++) draw_digit(lab_splitmix64(&state), images + i * SIDE * SIDE, labels + i);
    return KR_OK;
}
