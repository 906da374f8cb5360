/* Charts [E8] and the font [E7.1]: ink where it belongs, text inside the canvas and clear of other text, errors with the
   file's name, and data that is missing, constant or not a number. Files are made in a temporary folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* Memory is counted, and can be made to run out at the n-th request. */
static int live_blocks, requests, fail_at;
static void *counted_malloc(size_t bytes) {
    if (++requests == fail_at) return NULL;
    ++live_blocks;
    return malloc(bytes);
}
static void counted_free(void *p) {
    --live_blocks;
    free(p);
}
#define DT_MALLOC(bytes) counted_malloc(bytes)
#define DT_FREE(pointer) counted_free(pointer)
#ifndef DTRAIN_WITH_CHARTS
#define DTRAIN_WITH_CHARTS
#endif
#define DTRAIN_IMPLEMENTATION
#ifdef DTRAIN_HEADER
#include DTRAIN_HEADER
#else
#include "../dtrain.h"
#endif

static const double xs[] = { 1, 2, 3, 4, 5 }, ys[] = { 1, 1.9, 1.88, 1.91, 1.86 };
static const double lows[] = { 0.98, 1.85, 1.7, 1.8, 1.7 }, highs[] = { 1.02, 1.93, 1.9, 1.95, 1.9 };

/* ---- The font ---- */

/* The length of a character's strokes, which must lie in its box, as [E7.1] says. */
static float ink_in_box(int code) {
    dti_segment g[DTI_FONT_SEGMENTS];
    float width = 0, length = 0;
    const int n = dti_font_strokes(code, g, &width);
    const float half = dti_font_find(code).raised ? 0.03f : 0.05f; /* of a stroke's thickness */
    for (int i = 0; i < n; ++i) {
        const float x[2] = { g[i].x0, g[i].x1 }, y[2] = { g[i].y0, g[i].y1 };
        for (int k = 0; k < 2; ++k)
            if (!(x[k] >= half - 1e-5f && x[k] <= width - half + 1e-5f && y[k] >= DTI_FONT_BOTTOM + 0.05f && y[k] <= DTI_FONT_TOP - 0.05f))
                fail_msg("U+%04X: point (%g, %g) outside of the box, width %g", (unsigned)code, (double)x[k], (double)y[k], (double)width);
        length += hypotf(x[1] - x[0], y[1] - y[0]);
    }
    return length;
}

static void every_glyph_has_ink_and_stays_in_its_box(void **state) {
    (void)state;
    for (int code = 32; code <= 126; ++code) {
        dti_segment g[DTI_FONT_SEGMENTS];
        float width = 0;
        const int n = dti_font_strokes(code, g, &width);
        const char text[2] = { (char)code, 0 };
        assert_true(width > 0.2f && width < 1.3f);
        assert_true(fabsf(dti_text_width(text, SIZE_MAX) - width) < 1e-6f);
        assert_true(n < DTI_FONT_SEGMENTS);
        assert_int_equal(n == 0, code == ' ');
        const float length = ink_in_box(code);
        assert_true(code == ' ' || length >= 0.049f);
    }
}

static void no_two_glyphs_are_the_same(void **state) {
    (void)state;
    dti_segment a[DTI_FONT_SEGMENTS], b[DTI_FONT_SEGMENTS];
    for (int p = 33; p <= 126; ++p)
        for (int q = 33; q < p; ++q) {
            const int n = dti_font_strokes(p, a, NULL), m = dti_font_strokes(q, b, NULL);
            assert_false(n == m && memcmp(a, b, (size_t)n * sizeof *a) == 0);
        }
}

static void digits_are_equally_wide_and_capital_high(void **state) {
    (void)state;
    for (int d = '0'; d <= '9'; ++d) {
        dti_segment g[DTI_FONT_SEGMENTS];
        float width, low = 9, high = -9;
        const int n = dti_font_strokes(d, g, &width);
        for (int i = 0; i < n; ++i) {
            low = fminf(low, fminf(g[i].y0, g[i].y1));
            high = fmaxf(high, fmaxf(g[i].y0, g[i].y1));
        }
        assert_true(fabsf(width - 0.76f) < 1e-6f && fabsf(low) < 1e-6f && fabsf(high - 1) < 1e-6f);
    }
}

static void utf8_is_decoded_and_malformed_bytes_end(void **state) {
    (void)state;
    const char *s = "a\xc2\xb5\xe2\x80\x93\xf0\x9f\x98\x80";
    const int want[] = { 'a', 0xb5, 0x2013, 0x1f600, 0 };
    for (int i = 0; i < 5; ++i) assert_int_equal(dti_text_next(&s), want[i]);
    const char *bad = "\xe2\x80";
    for (int i = 0; i < 2; ++i) assert_int_equal(dti_text_next(&bad), 0xfffd);
    assert_int_equal(dti_text_next(&bad), 0);
    assert_true(dti_text_width("\xff\xff", SIZE_MAX) > 1); /* two boxes */
}

static bool same_strokes(int p, int q) {
    dti_segment a[DTI_FONT_SEGMENTS], b[DTI_FONT_SEGMENTS];
    const int n = dti_font_strokes(p, a, NULL), m = dti_font_strokes(q, b, NULL);
    return n == m && memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

/* How often the text would be drawn as the empty box. */
static int boxes(const char *s) {
    int n = 0;
    for (int code; (code = dti_text_next(&s));) n += same_strokes(code, 0x10fffe);
    return n;
}

static void letters_with_accents_are_drawn(void **state) {
    (void)state;
    for (int code = 0xc0; code <= 0x17f; ++code) {
        const dti_made made = dti_font_find(code);
        assert_true(ink_in_box(code) > 0.05f);
        assert_false(same_strokes(code, 0x10fffe));
        for (int p = 0xc0; p < code; ++p) /* no two with other letters or marks look alike, nor like the letter alone */
            if (made.mark || made.second) {
                const dti_made other = dti_font_find(p);
                const bool twin = other.glyph == made.glyph && other.mark == made.mark && other.second == made.second;
                if (same_strokes(code, p) != twin) fail_msg("U+%04X and U+%04X look alike", (unsigned)code, (unsigned)p);
            }
        if (made.mark) assert_false(same_strokes(code, made.glyph->code));
    }
    assert_true(same_strokes(0x138, 'k') && !same_strokes(0xe9, 'e') && !same_strokes(0xe9, 0xe8));
    assert_int_equal(dti_font_find(0xdf).glyph->code, 's'); /* sharp s: two of them, as wide as these */
    assert_true(fabsf(dti_text_width("\xc3\x9f", SIZE_MAX) - dti_text_width("ss", SIZE_MAX)) < 1e-6f);
    dti_segment g[DTI_FONT_SEGMENTS];
    assert_int_equal(dti_font_strokes('i', g, NULL), dti_font_strokes(0x131, g, NULL) + 1); /* i has a dot, and with an accent none */
    assert_int_equal(dti_font_strokes(0xed, g, NULL), 2);
}

static void accents_take_no_room_of_their_own(void **state) {
    (void)state;
    static const char *const pair[][2] = { { "R\xc3\xa9, na\xc3\xafve", "Re, naive" }, { "\xc3\x89""COLE", "ECOLE" }, { "\xc5\x81\xc3\xb3\x64\xc5\xba", "Lodz" },
        { "\xe2\x80\x9cq\xe2\x80\x9d", "\"q\"" }, { "a\xc2\xa0""b", "a b" } };
    for (size_t i = 0; i < sizeof pair / sizeof *pair; ++i) {
        assert_true(fabsf(dti_text_width(pair[i][0], SIZE_MAX) - dti_text_width(pair[i][1], SIZE_MAX)) < 1e-6f);
        const dti_paragraph a = dti_wrap(pair[i][0], 10, 30), b = dti_wrap(pair[i][1], 10, 30);
        assert_int_equal(a.lines, b.lines); /* and lines break after the same characters */
    }
}

/* What the header says that is drawn, and that nothing else is. */
static void what_is_drawn_is_what_the_header_says(void **state) {
    (void)state;
    char ascii[96] = "";
    for (int i = 0; i < 95; ++i) ascii[i] = (char)(32 + i);
    assert_int_equal(boxes(ascii), 0);
    assert_int_equal(boxes("°±·×÷µαβ–—‘’“”„…→−≈≤≥⁰¹²³⁴⁵⁶⁷⁸⁹⁻"), 0);
    assert_int_equal(boxes("ΩγЯ中😀€ƀẞ"), 8);
    for (int code = 0x2070; code < 0x207c; ++code)
        if (boxes((const char[]){ (char)0xe2, (char)0x81, (char)(0x80 | (code & 63)), 0 }) == 0) assert_true(ink_in_box(code) > 0.1f);
    assert_true(dti_text_width("⁵", SIZE_MAX) < 0.7f * dti_text_width("5", SIZE_MAX));
}

/* ---- Pictures ---- */

/* How many pixels are darker than white in part of a picture. */
static int ink(const uint8_t *pixels, int width, int x0, int y0, int x1, int y1) {
    int n = 0;
    for (int y = y0; y < y1; ++y)
        for (int x = x0; x < x1; ++x) n += pixels[3 * (y * width + x)] < 250;
    return n;
}

static void assert_sound(dt_chart *c) {
    const dt_err err = dt_chart_check(c);
    if (err != DT_OK) fail_msg("%s", dt_error());
}

static dt_chart *speedup(const char *title) {
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = title, .subtitle = "median of five runs", .x_label = "ranks", .y_label = "speedup over one rank",
                                                 .caption = "MNIST", .machine = true });
    dt_chart_line(c, &(dt_series){ .label = "synchronous SGD", .n = 5, .x = xs, .y = ys, .y_min = lows, .y_max = highs });
    dt_chart_line(c, &(dt_series){ .label = "Hogwild", .n = 5, .x = xs, .y = highs });
    dt_chart_reference(c, &(dt_reference){ .label = "ideal", .slope = 1 });
    dt_chart_shade_cores(c);
    dt_chart_shade(c, &(dt_shade){ .label = "more workers than cores", .from = 4.5, .to = INFINITY });
    return c;
}

static void a_chart_is_not_blank_and_its_text_is_clear(void **state) {
    (void)state;
    dt_chart *c = speedup("Two ranks train 1.9 times faster");
    int w = 0, h = 0;
    const uint8_t *pixels = dt_chart_pixels(c, &w, &h);
    assert_non_null(pixels);
    assert_int_equal(w, 1200);
    assert_int_equal(h, 750);
    assert_true(ink(pixels, w, 0, 0, w, 60) > 500);          /* title */
    assert_true(ink(pixels, w, 0, 690, w, h) > 300);         /* caption */
    assert_true(ink(pixels, w, 100, 100, 900, 600) > 3000);  /* lines */
    assert_int_equal(ink(pixels, w, 0, 0, w, 8) + ink(pixels, w, 0, h - 8, w, h) + ink(pixels, w, 0, 0, 8, h) + ink(pixels, w, w - 8, 0, w, h), 0);
    assert_sound(c);
    dt_chart_free(c);
}

static void long_titles_and_labels_wrap(void **state) {
    (void)state;
    char title[700], word[300];
    for (size_t i = 0; i + 1 < sizeof title; ++i) title[i] = i % 9 == 8 ? ' ' : 'm';
    title[sizeof title - 1] = 0;
    memset(word, 'w', sizeof word);
    word[sizeof word - 1] = 0;
    dt_chart *c = speedup(title);
    dt_chart_line(c, &(dt_series){ .label = title, .n = 5, .x = xs, .y = lows });
    assert_sound(c);
    assert_true(c->text_count > 12);
    dt_chart_free(c);
    c = dt_chart_new(&(dt_chart_desc){ .title = word, .subtitle = word, .caption = title, .x_label = word, .y_label = title, .width = 500, .height = 400 });
    dt_chart_line(c, &(dt_series){ .label = word, .n = 5, .x = xs, .y = ys });
    dt_chart_reference(c, &(dt_reference){ .label = "a ceiling with a label about as long as half of the chart is wide", .offset = 1.5 });
    assert_sound(c);
    dt_chart_free(c);
}

static void every_size_and_scale_is_sound(void **state) {
    (void)state;
    static const int sizes[][2] = { { 0, 0 }, { 400, 300 }, { 640, 400 }, { 2400, 1500 }, { 1600, 500 }, { 600, 900 } };
    static const char *const labels[] = { "naive", "tree", "ring", "recursive doubling", "MPICH", "all-gather", "seventh", "eighth", "ninth" };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; ++k)
        for (int scale = 0; scale < 9; ++scale) {
            dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = "A title of ordinary length, as findings have", .subtitle = "and a subtitle", .x_label = "size", .y_label = "time",
                .x_scale = (dt_axis_scale)(scale % 3), .y_scale = (dt_axis_scale)(scale / 3), .x_format = DT_TICKS_BYTES, .y_format = DT_TICKS_SECONDS,
                .width = sizes[k][0], .height = sizes[k][1], .machine = true });
            for (int s = 0; s < 9; ++s) {
                double x[9], y[9];
                for (int i = 0; i < 9; ++i) { x[i] = pow(8, i); y[i] = 1e-6 * (s + 1) + 1e-9 * x[i]; }
                dt_chart_line(c, &(dt_series){ .label = labels[s], .n = 9, .x = x, .y = y });
            }
            assert_sound(c);
            dt_chart_free(c);
        }
}

static void bars_are_sound(void **state) {
    (void)state;
    static const char *const names[] = { "naive", "recursive doubling", "ring", "reduce-scatter and all-gather", "tree", "MPICH" };
    static const char *const labels[] = { "two", "three", "four", "five ranks" };
    double y[24], lo[24], hi[24];
    for (int i = 0; i < 24; ++i) { y[i] = 10 + 7 * (i * 5 % 11); lo[i] = 0.9 * y[i]; hi[i] = 1.1 * y[i]; }
    y[7] = NAN;
    for (int k = 0; k < 8; ++k) {
        dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = "bars", .y_label = "time", .width = k & 4 ? 500 : 0, .height = k & 4 ? 350 : 0 });
        dt_chart_bars(c, &(dt_bars){ .groups = 6, .series = 4, .names = names, .labels = labels, .y = y, .y_min = k & 2 ? lo : NULL, .y_max = k & 2 ? hi : NULL, .stacked = k & 1, .values = true });
        dt_chart_reference(c, &(dt_reference){ .label = "ceiling", .offset = 85 });
        assert_sound(c);
        dt_chart_free(c);
    }
}

static void pictures_keep_their_pixels(void **state) {
    (void)state;
    static uint8_t tile[12 * 6 * 6];
    const char *captions[12];
    for (int i = 0; i < 12; ++i) captions[i] = i % 2 ? "seven" : "1";
    memset(tile, 200, sizeof tile);
    tile[0] = 10;
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = "sheet", .caption = "synthetic digits", .width = 600 });
    dt_chart_images(c, &(dt_images){ .n = 12, .columns = 6, .width = 6, .height = 6, .pixels = tile, .captions = captions });
    int w = 0, h = 0, dark = 0, grey = 0;
    const uint8_t *pixels = dt_chart_pixels(c, &w, &h);
    assert_non_null(pixels);
    for (int i = 0; i < w * h; ++i) { dark += pixels[3 * i] == 10; grey += pixels[3 * i] == 200; }
    assert_true(dark >= 36 && grey >= 35 * dark); /* 6 x 6 pixels for each, whatever text adds */
    assert_true(h < 400);
    assert_sound(c);
    dt_chart_free(c);
}

static void histograms_count_everything(void **state) {
    (void)state;
    double v[1000];
    for (int i = 0; i < 1000; ++i) v[i] = dt_uniform(dt_philox(1, DT_RNG_TEST, 0, 0, (uint32_t)i).v[0]);
    v[17] = NAN;
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = "uniform", .x_label = "value", .y_label = "count" });
    dt_chart_histogram(c, &(dt_histogram){ .n = 1000, .values = v, .bins = 10 });
    double sum = 0;
    for (size_t i = 0; i < 10; ++i) sum += c->first->y[i];
    assert_true(fabs(sum - 999) < 0.5);
    assert_sound(c);
    dt_chart_free(c);
}

static void odd_data_gives_a_sensible_axis(void **state) {
    (void)state;
    static const double nan5[] = { NAN, NAN, NAN, NAN, NAN }, same[] = { 7, 7, 7, 7, 7 }, zero[] = { 0, 0, 0, 0, 0 };
    static const double wild[] = { 1e300, -1e300, INFINITY, -INFINITY, 3 }, tiny[] = { 1e-12, 2e-12, 3e-12, 1e-12, 5e-12 }, minus[] = { -5, -4, -1, -2, -3 };
    static const double near[] = { 1e9, 1e9 + 1, 1e9 + 2, 1e9 + 1, 1e9 };
    static const double *const data[] = { nan5, same, zero, wild, tiny, minus, near, xs };
    for (size_t a = 0; a < 8; ++a)
        for (size_t b = 0; b < 8; ++b)
            for (int scale = 0; scale < 3; ++scale)
                for (size_t n = 0; n <= 5; n += n == 1 ? 4 : 1) {
                    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = "odd", .x_label = "x", .y_label = "y", .width = 300, .height = 200,
                                                                 .x_scale = (dt_axis_scale)scale, .y_scale = (dt_axis_scale)scale });
                    dt_chart_line(c, &(dt_series){ .label = "a", .n = n, .x = data[a], .y = data[b], .y_min = data[a], .y_max = data[b] });
                    dt_chart_shade(c, &(dt_shade){ .label = "s", .from = -INFINITY, .to = 2 });
                    dt_chart_reference(c, &(dt_reference){ .label = "r", .slope = 2, .offset = 1 });
                    int w, h;
                    assert_non_null(dt_chart_pixels(c, &w, &h));
                    assert_true(isfinite(c->x.lo) && isfinite(c->y.hi) && c->x.lo < c->x.hi && c->y.lo < c->y.hi);
                    assert_true(c->x.ticks >= 1 && c->y.ticks >= 2);
                    dt_chart_free(c);
                }
}

static void counts_are_ticks(void **state) {
    (void)state;
    dt_chart *c = speedup("ticks");
    assert_sound(c);
    assert_int_equal(c->x.ticks, 5);
    for (int i = 0; i < 5; ++i) assert_true(fabs(c->x.tick[i] - xs[i]) < 1e-12);
    assert_true(fabs(c->y.lo) < 1e-12 && fabs(c->y.hi - 5) < 0.5); /* 0 is near, the ideal line ends at 5 */
    dt_chart_free(c);
    const double given[] = { 1, 4, 5 };
    c = dt_chart_new(&(dt_chart_desc){ .x_ticks = given, .x_tick_count = 3 });
    dt_chart_line(c, &(dt_series){ .n = 5, .x = xs, .y = ys });
    assert_sound(c);
    assert_int_equal(c->x.ticks, 3);
    dt_chart_free(c);
    /* 20 steps, more than are a tick each: no tick at 2.5; at half an epoch there may be one */
    double steps[21], halves[21];
    for (int i = 0; i <= 20; ++i) steps[i] = i, halves[i] = 0.5 * i;
    for (int half = 0; half < 2; ++half) {
        c = dt_chart_new(&(dt_chart_desc){ .title = "steps" });
        dt_chart_line(c, &(dt_series){ .n = 21, .x = half ? halves : steps, .y = steps });
        assert_sound(c);
        for (int i = 0; i < c->x.ticks && !half; ++i) assert_true(fabs(c->x.tick[i] - 5 * i) < 1e-12);
        assert_int_equal(c->x.ticks, half ? 6 : 5);
        dt_chart_free(c);
    }
}

static void numbers_read_well(void **state) {
    (void)state;
    static const struct { dt_tick_format format; double step, value; const char *want; } cases[] = {
        { DT_TICKS_PLAIN, 0.5, 1, "1.0" }, { DT_TICKS_PLAIN, 1, 5, "5" }, { DT_TICKS_PLAIN, 20000, 60000, "60,000" }, { DT_TICKS_PLAIN, 0, 0.1 + 0.2, "0.3" },
        { DT_TICKS_PLAIN, 0.25, 0.75, "0.75" }, { DT_TICKS_BYTES, 0, 65536, "64 KiB" }, { DT_TICKS_BYTES, 0, 4, "4 B" }, { DT_TICKS_SECONDS, 0, 1e-5, "10 \xc2\xb5s" },
        { DT_TICKS_SECONDS, 0, 2, "2 s" }, { DT_TICKS_SI, 0, 20000, "20 k" }, { DT_TICKS_PERCENT, 0.005, 0.985, "98.5%" }, { DT_TICKS_PERCENT, 0.1, 0.5, "50%" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const dti_chart_axis a = { .format = cases[i].format, .step = cases[i].step };
        char text[DTI_NUMBER];
        dti_tick_text(&a, cases[i].value, text);
        assert_string_equal(text, cases[i].want);
    }
}

static void powers_of_ten_read_well(void **state) {
    (void)state;
    static const struct { dt_tick_format format; dt_axis_scale scale; double step, value, ticks[2]; const char *want; } cases[] = {
        { DT_TICKS_PLAIN, DT_LOG10, 0, 1e-5, { 1e-5, 1 }, "10⁻⁵" }, { DT_TICKS_PLAIN, DT_LOG10, 0, 0.01, { 1e-5, 1 }, "10⁻²" },
        { DT_TICKS_PLAIN, DT_LOG10, 0, 1, { 1e-5, 1 }, "1" }, { DT_TICKS_PLAIN, DT_LOG10, 0, 10, { 1, 1e7 }, "10" }, { DT_TICKS_PLAIN, DT_LOG10, 0, 5e6, { 1, 1e7 }, "5×10⁶" },
        { DT_TICKS_PLAIN, DT_LOG10, 0, 0.01, { 0.001, 1 }, "0.01" }, { DT_TICKS_PLAIN, DT_LINEAR, 2e-5, 4e-5, { 0, 8e-5 }, "4×10⁻⁵" },
        { DT_TICKS_PLAIN, DT_LINEAR, 2e-5, 0, { 0, 8e-5 }, "0" }, { DT_TICKS_PLAIN, DT_LINEAR, 5e5, 5e5, { 0, 2e6 }, "0.5×10⁶" },
        { DT_TICKS_PLAIN, DT_LINEAR, 1e-288, 3e-288, { 1e-288, 4e-288 }, "3×10⁻²⁸⁸" }, { DT_TICKS_PLAIN, DT_LOG2, 0, 1048576, { 1, 1048576 }, "2²⁰" },
        { DT_TICKS_SI, DT_LOG10, 0, 3e-288, { 0, 0 }, "3×10⁻²⁸⁸" }, { DT_TICKS_SI, DT_LOG10, 0, 1e-12, { 0, 0 }, "1 p" }, { DT_TICKS_SI, DT_LOG10, 0, 2e15, { 0, 0 }, "2×10¹⁵" },
        { DT_TICKS_SI, DT_LINEAR, 0.5, 1e9 + 0.5, { 1e9, 1e9 + 3 }, "1.0000000005 G" }, { DT_TICKS_SECONDS, DT_LINEAR, 0, 3e-15, { 0, 0 }, "3×10⁻¹⁵ s" },
        { DT_TICKS_SECONDS, DT_LINEAR, 0, 2e6, { 0, 0 }, "2×10⁶ s" }, { DT_TICKS_SECONDS, DT_LINEAR, 0, 5000, { 0, 0 }, "5000 s" }, { DT_TICKS_BYTES, DT_LINEAR, 0, 1e-9, { 0, 0 }, "10⁻⁹ B" },
        { DT_TICKS_PERCENT, DT_LINEAR, 2e-9, 4e-9, { 0, 6e-9 }, "4×10⁻⁷%" } };
    char text[DTI_NUMBER];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const dti_chart_axis a = { .format = cases[i].format, .scale = cases[i].scale, .step = cases[i].step, .tick = { cases[i].ticks[0], cases[i].ticks[1] }, .ticks = 2 };
        dti_tick_text(&a, cases[i].value, text);
        assert_string_equal(text, cases[i].want);
    }
    static const struct { double value; const char *want; } bars[] = { { 1234.5, "1234" }, { 12.345, "12.3" }, { 999.9996, "1000" }, { 0, "0" }, { 0.25, "0.25" },
        { 1e6, "10⁶" }, { 3.14e-288, "3.14×10⁻²⁸⁸" }, { -2.5e-7, "-2.5×10⁻⁷" }, { -1e-5, "-10⁻⁵" }, { 999999.9, "10⁶" }, { 123456, "123456" } };
    for (size_t i = 0; i < sizeof bars / sizeof *bars; ++i) {
        dti_number_text(bars[i].value, 3, text);
        assert_string_equal(text, bars[i].want);
    }
}

/* The value that a tick's text tells a reader. */
static double value_of(const char *text) {
    static const char *const si[] = { "p", "n", "µ", "m", "k", "M", "G", "T" };
    char number[64];
    size_t n = 0;
    int exponent = 0, base = 10;
    double value = 1;
    for (; *text && strchr("+-.,0123456789", *text); ++text)
        if (*text != ',') number[n++] = *text;
    number[n] = 0;
    if (strncmp(text, "×", 2) == 0) { value = strtod(number, NULL); base = strtol(text + 2, (char **)&text, 10) == 2 ? 2 : 10; }
    else if ((unsigned char)*text > 0xc2 || ((unsigned char)*text == 0xc2 && (unsigned char)text[1] != 0xb5)) { /* 10 or 2, raised */
        base = abs((int)strtol(number, NULL, 10));
        value = *number == '-' ? -1 : 1;
    } else value = strtod(number, NULL);
    bool less = false;
    for (int code; (unsigned char)*text > 127 && (code = dti_text_next(&text)) != 0xb5;) {
        const dti_made made = dti_font_find(code);
        assert_true(made.raised);
        if (made.glyph->code == '-') less = true; else exponent = 10 * exponent + made.glyph->code - '0';
    }
    if (less) exponent = -exponent;
    value = value * pow(base, exponent / 2) * pow(base, exponent - exponent / 2);
    if (*text == '%') return value / 100;
    if (*text == ' ') ++text;
    for (int k = 0; k < 8; ++k)
        if (strncmp(text, si[k], strlen(si[k])) == 0) return value * pow(1000, k < 4 ? k - 4 : k - 3);
    return value;
}

static void ticks_tell_their_values_apart(void **state) {
    (void)state;
    static const double ends[][2] = { { 0, 1 }, { 1, 5 }, { 1e-11, 1e-1 }, { 1e9, 1e9 + 3 }, { 2e-288, 5e-288 }, { 0, 1.2e6 }, { 5e-4, 1e-3 }, { 1, 1e7 }, { 0, 9e-4 },
        { -1e299, 1e299 }, { 3, 1e299 }, { 1e-299, 1 }, { 1e15, 3e16 }, { -3e-7, 2e-7 }, { 0.98, 0.99 }, { 5e-324, 1e-322 }, { 999999, 1000001 }, { 123456.5, 123456.75 } };
    static const dt_tick_format formats[] = { DT_TICKS_PLAIN, DT_TICKS_SI, DT_TICKS_PERCENT, DT_TICKS_SECONDS };
    for (size_t e = 0; e < sizeof ends / sizeof *ends; ++e)
        for (int k = 0; k < 12; ++k) {
            char text[DTI_TICKS][DTI_NUMBER];
            dt_chart *c = dt_chart_new(&(dt_chart_desc){ .y_format = formats[k % 4], .y_scale = (dt_axis_scale)(k / 4) });
            dt_chart_line(c, &(dt_series){ .n = 2, .x = xs, .y = ends[e] });
            dti_chart_ranges(c);
            assert_true(isfinite(c->y.lo) && isfinite(c->y.hi) && c->y.lo < c->y.hi && c->y.ticks >= 2);
            for (int i = 0; i < c->y.ticks; ++i) {
                dti_tick_text(&c->y, c->y.tick[i], text[i]);
                const double said = value_of(text[i]), is = fabs(c->y.tick[i]) < 1e-9 * c->y.step ? 0 : c->y.tick[i];
                if (!(fabs(said - is) <= 6e-4 * fabs(is))) fail_msg("%g is written \"%s\", which reads as %g", is, text[i], said);
                for (int j = 0; j < i; ++j)
                    if (strcmp(text[i], text[j]) == 0) fail_msg("%.12g and %.12g are both written \"%s\"", c->y.tick[j], is, text[i]);
            }
            dt_chart_free(c);
        }
}

/* The words under a chart of these values. */
static const char *said_of(const double *y, size_t n, dt_axis_scale scale, bool bars) {
    static char words[400];
    static const char *const names[] = { "a", "b", "c", "d", "e" };
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = "left out", .caption = "caption", .y_scale = scale });
    if (bars) dt_chart_bars(c, &(dt_bars){ .groups = n, .series = 1, .names = names, .y = y });
    else dt_chart_line(c, &(dt_series){ .n = n, .x = xs, .y = y, .y_min = y, .y_max = y });
    assert_sound(c);
    assert_sound(c); /* twice: the words are not added again */
    snprintf(words, sizeof words, "%s", c->caption);
    dt_chart_free(c);
    return words;
}

static void what_is_left_out_is_said(void **state) {
    (void)state;
    static const double wild[] = { 1e300, -1e300, INFINITY, 3, 4 }, low[] = { 0, -1, 2, 3, 1e300 }, gap[] = { 1, NAN, 2, 3, 4 };
    assert_string_equal(said_of(ys, 5, DT_LINEAR, false), "caption");
    assert_string_equal(said_of(gap, 5, DT_LOG10, false), "caption");
    assert_string_equal(said_of(low, 4, DT_LINEAR, false), "caption");
    assert_string_equal(said_of(wild, 5, DT_LINEAR, true), "caption\nNot drawn: 3 values infinite or beyond 10³⁰⁰.");
    assert_string_equal(said_of(wild, 5, DT_LINEAR, false), "caption\nNot drawn: 9 values infinite or beyond 10³⁰⁰."); /* with both ends of the bars */
    assert_string_equal(said_of(low, 5, DT_LOG2, true), "caption\nNot drawn: 1 value infinite or beyond 10³⁰⁰, 2 values not above 0 on a logarithmic axis.");
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = "histogram" });
    dt_chart_histogram(c, &(dt_histogram){ .n = 5, .values = wild, .bins = 5 });
    assert_sound(c);
    assert_string_equal(c->caption, "Not drawn: 3 values infinite or beyond 10³⁰⁰.");
    dt_chart_free(c);
}

static void an_axis_without_its_zero_says_so(void **state) {
    (void)state;
    static const struct { double lo, hi; dt_axis_scale scale; dt_tick_format format; const char *want; } cases[] = {
        { 0.94, 0.96, DT_LINEAR, DT_TICKS_PERCENT, "y (axis from 94.0%)" }, { 0.4, 0.9, DT_LINEAR, DT_TICKS_PLAIN, "y" },
        { 0.6, 0.9, DT_LINEAR, DT_TICKS_PLAIN, "y (axis from 0.60)" }, { -5, -4, DT_LINEAR, DT_TICKS_PLAIN, "y (axis up to -4.0)" },
        { -1, 4, DT_LINEAR, DT_TICKS_PLAIN, "y" }, { 0.94, 0.96, DT_LOG10, DT_TICKS_PLAIN, "y" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const double y[2] = { cases[i].lo, cases[i].hi };
        dt_chart *c = dt_chart_new(&(dt_chart_desc){ .y_label = "y", .y_scale = cases[i].scale, .y_format = cases[i].format });
        dt_chart_line(c, &(dt_series){ .n = 2, .x = xs, .y = y });
        assert_sound(c);
        assert_sound(c);
        assert_string_equal(c->y_label, cases[i].want);
        dt_chart_free(c);
    }
}

/* Many lines are drawn, but no more labels than can be told apart; and a canvas that the texts fill is refused. */
static void what_cannot_be_read_is_refused(void **state) {
    (void)state;
    for (int labels = 39; labels <= 42; ++labels) {
        dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = "many" });
        for (int k = 0; k < 200; ++k) {
            char name[16];
            const double y[2] = { k, k + 1 };
            snprintf(name, sizeof name, "line %d", k + 1);
            dt_chart_line(c, &(dt_series){ .label = k < labels ? name : NULL, .n = 2, .x = xs, .y = y });
        }
        assert_int_equal(dt_chart_check(c), labels <= 40 ? DT_OK : DT_EARG);
        if (labels > 40) assert_non_null(strstr(dt_error(), "\"line 41\" is label 41"));
        dt_chart_free(c);
    }
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = "a title", .caption = "a caption", .width = 90, .height = 40 });
    dt_chart_line(c, &(dt_series){ .label = "a label", .n = 5, .x = xs, .y = ys });
    assert_int_equal(dt_chart_write(c, "never.png"), DT_ESHAPE);
    assert_non_null(strstr(dt_error(), "no room for a plot on 90 x 40 pixels"));
    dt_chart_free(c);
}

/* The legend shows a series as the plot does: with a marker only if it has markers, and a line only if it has one. */
static void a_legend_shows_what_is_drawn(void **state) {
    (void)state;
    int dark[4];
    for (int style = 0; style < 4; ++style) {
        int w = 0, h = 0;
        dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = "legend" });
        dt_chart_line(c, &(dt_series){ .label = "a", .n = 5, .x = xs, .y = ys, .style = (dt_line_style)style });
        dt_chart_bars(c, &(dt_bars){ .groups = 2, .series = 1, .labels = (const char *const[]){ "b" }, .y = ys }); /* no room at the right */
        const uint8_t *p = dt_chart_pixels(c, &w, &h);
        assert_non_null(p);
        dark[style] = ink(p, w, 26, 60, 26 + 29, 100);
        dt_chart_free(c);
    }
    assert_true(dark[DT_LINE_AUTO] > dark[DT_LINE_PLAIN] && dark[DT_LINE_PLAIN] > dark[DT_LINE_DASHED]);
    assert_true(dark[DT_LINE_AUTO] > dark[DT_LINE_POINTS] && dark[DT_LINE_POINTS] > 50);
}

/* ---- Files and failures ---- */

static void png_and_csv_are_written(void **state) {
    (void)state;
    dt_chart *c = speedup("a \"quoted\" title");
    assert_int_equal(dt_chart_save(c, "chart.png"), DT_OK);
    dt_chart_free(c);
    unsigned char head[8] = { 0 };
    FILE *f = fopen("chart.png", "rb");
    assert_non_null(f);
    assert_int_equal(fread(head, 1, 8, f), 8);
    fclose(f);
    assert_memory_equal(head, "\x89PNG\r\n\x1a\n", 8);
    char line[256];
    f = fopen("chart.csv", "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "series,\"ranks\",\"speedup over one rank\",min,max\n");
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "\"synchronous SGD\",1,1,0.98,1.02\n");
    int lines = 2;
    while (fgets(line, sizeof line, f)) ++lines;
    fclose(f);
    assert_int_equal(lines, 1 + 5 + 5 + 2);
    remove("chart.png");
    remove("chart.csv");
}

static void a_path_that_cannot_be_written_is_named(void **state) {
    (void)state;
    dt_chart *c = speedup("lost");
    assert_int_equal(dt_chart_write(c, "no_such_folder/lost.png"), DT_EIO);
    assert_non_null(strstr(dt_error(), "no_such_folder/lost.png"));
    assert_int_equal(dt_chart_write_csv(c, "no_such_folder/lost.png"), DT_EIO);
    assert_non_null(strstr(dt_error(), "no_such_folder/lost.csv"));
    if (access("/dev/full", W_OK) == 0) {
        assert_int_equal(dt_chart_write(c, "/dev/full"), DT_EIO);
        assert_non_null(strstr(dt_error(), "/dev/full"));
    }
    dt_chart_free(c);
}

static void a_bad_size_is_an_argument_error(void **state) {
    (void)state;
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .width = 100000 });
    assert_int_equal(dt_chart_write(c, "never.png"), DT_EARG);
    assert_non_null(strstr(dt_error(), "100000"));
    dt_chart_free(c);
    assert_int_equal(dt_chart_check(NULL), DT_ENOMEM);
}

static void memory_that_runs_out_is_reported_and_nothing_leaks(void **state) {
    (void)state;
    assert_int_equal(live_blocks, 0);
    for (int at = 1; at < 200; ++at) {
        requests = 0;
        fail_at = at;
        dt_chart *c = speedup("short of memory");
        const dt_err err = dt_chart_check(c);
        const bool reached = requests >= fail_at;
        dt_chart_free(c);
        fail_at = 0;
        assert_int_equal(live_blocks, 0);
        assert_int_equal(err, reached ? DT_ENOMEM : DT_OK);
        if (!reached) return;
    }
    fail_msg("a chart takes 200 blocks");
}

static void the_machine_has_a_line(void **state) {
    (void)state;
    char line[256], cut[8];
    dt_machine_caption(line, sizeof line);
    dt_machine_caption(cut, sizeof cut);
    assert_true(dt_cores() >= 1);
    assert_non_null(strstr(line, " core"));
    assert_non_null(strstr(line, ", 20"));
    assert_int_equal(strlen(cut), 7);
    assert_non_null(strstr(dt_kernel_name(), "lane"));
}

static int enter(void **state) {
    static char folder[] = "/tmp/dtrain_charts_XXXXXX";
    *state = folder;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}
static int leave(void **state) { return chdir("/") == 0 ? rmdir((const char *)*state) : -1; }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_glyph_has_ink_and_stays_in_its_box),
        cmocka_unit_test(no_two_glyphs_are_the_same),
        cmocka_unit_test(digits_are_equally_wide_and_capital_high),
        cmocka_unit_test(utf8_is_decoded_and_malformed_bytes_end),
        cmocka_unit_test(letters_with_accents_are_drawn),
        cmocka_unit_test(accents_take_no_room_of_their_own),
        cmocka_unit_test(what_is_drawn_is_what_the_header_says),
        cmocka_unit_test(a_chart_is_not_blank_and_its_text_is_clear),
        cmocka_unit_test(long_titles_and_labels_wrap),
        cmocka_unit_test(every_size_and_scale_is_sound),
        cmocka_unit_test(bars_are_sound),
        cmocka_unit_test(pictures_keep_their_pixels),
        cmocka_unit_test(histograms_count_everything),
        cmocka_unit_test(odd_data_gives_a_sensible_axis),
        cmocka_unit_test(counts_are_ticks),
        cmocka_unit_test(numbers_read_well),
        cmocka_unit_test(powers_of_ten_read_well),
        cmocka_unit_test(ticks_tell_their_values_apart),
        cmocka_unit_test(what_is_left_out_is_said),
        cmocka_unit_test(an_axis_without_its_zero_says_so),
        cmocka_unit_test(what_cannot_be_read_is_refused),
        cmocka_unit_test(a_legend_shows_what_is_drawn),
        cmocka_unit_test(png_and_csv_are_written),
        cmocka_unit_test(a_path_that_cannot_be_written_is_named),
        cmocka_unit_test(a_bad_size_is_an_argument_error),
        cmocka_unit_test(memory_that_runs_out_is_reported_and_nothing_leaks),
        cmocka_unit_test(the_machine_has_a_line),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
