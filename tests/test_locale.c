/* Numbers know no locale: whatever setlocale() a host program has called, files, charts, tables and sentences are written as
   in the C locale, byte for byte, and numbers are read as there. The locales are built by localedef into a temporary folder
   (LOCPATH), so that no system has to have them; where it cannot build any, the comparisons run in the C locale alone. They
   are UTF-8 and a country's LC_NUMERIC, all else is POSIX's: a country's whole alphabet would take localedef 5 s. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <locale.h>

#include <cmocka.h>

#define DTRAIN_WITH_CHARTS
#define DTRAIN_IMPLEMENTATION
#include "../chapters/chapter.h"
#include "../chapters/ch12_report.h"

static char folder[] = "/tmp/dtrain_locale_XXXXXX";

/* A comma; a comma beside a narrow space between thousands; and a decimal point of two bytes. */
static const char *const locales[] = { "de_DE.UTF-8", "fr_FR.UTF-8", "ps_AF.UTF-8" };
enum { LOCALES = sizeof locales / sizeof *locales };

/* The source of a locale: "LC_TIME / copy "POSIX" / END LC_TIME", and so on; and what makes it. */
static bool build_locale(const char *name) {
    static const char *const parts[] = { "CTYPE", "COLLATE", "TIME", "NUMERIC", "MONETARY", "MESSAGES" };
    char command[300];
    FILE *f = fopen("source", "w");
    if (!f) return false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i)
        fprintf(f, "LC_%s\ncopy \"%.5s\"\nEND LC_%s\n", parts[i], strcmp(parts[i], "NUMERIC") == 0 ? name : "POSIX", parts[i]);
    fclose(f);
    /* -c: the other parts, paper sizes and such, are missing, and nobody minds */
    snprintf(command, sizeof command, "localedef -c -i ./source -f UTF-8 ./%s >/dev/null 2>&1", name);
    (void)!system(command);
    snprintf(command, sizeof command, "%s/LC_NUMERIC", name);
    return access(command, R_OK) == 0;
}

static int enter(void **state) {
    (void)state;
    if (!mkdtemp(folder) || chdir(folder) != 0 || setenv("LOCPATH", folder, 1) != 0) return -1;
    for (int i = 0; i < LOCALES; ++i)
        if (!build_locale(locales[i]) || !setlocale(LC_ALL, locales[i])) printf("skipped: localedef builds no %s here\n", locales[i]);
    setlocale(LC_ALL, "C");
    return 0;
}

static int leave(void **state) {
    char command[300];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return chdir("/") == 0 ? system(command) : -1;
}

/* Runs a comparison in the C locale, where it records what it gets, then in every other one, where it must get the same. */
static void in_every_locale(void (*compare)(char *got, size_t size)) {
    static char want[1 << 20], got[1 << 20];
    char number[32];
    setlocale(LC_ALL, "C");
    compare(want, sizeof want);
    assert_true(strlen(want) > 0);
    for (int i = 0; i < LOCALES; ++i) {
        if (!setlocale(LC_ALL, locales[i])) continue; /* enter() has said that it is not there */
        snprintf(number, sizeof number, "%.1f", 0.5);
        assert_string_not_equal(number, "0.5"); /* or this would test nothing */
        memset(got, 0, 1000);
        compare(got, sizeof got);
        setlocale(LC_ALL, "C");
        if (strcmp(want, got) != 0) fail_msg("in %s:\n%s\nwanted:\n%s", locales[i], got, want);
    }
}

static void file_into(const char *path, char *text, size_t size) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(text, 1, size - 1, f);
    text[n] = '\0';
    fclose(f);
    remove(path);
}

/* ---- Writing ---- */

static const double values[] = { 0.0, -0.0, 0.5, -2.634, 1e-300, 1e300, 123456.789, 0.1 + 0.2, -1.0 / 3.0, INFINITY, -INFINITY, (double)NAN };
static const char *const formats[] = { "%f", "%.0f", "%.3f", "%g", "%.17g", "%e", "%.2e", "%a", "%+.1f", "% .1F", "%G", "%E", "%#.0f" };

static void print_doubles(char *got, size_t size) {
    size_t n = 0;
    for (size_t f = 0; f < sizeof formats / sizeof *formats; ++f)
        for (size_t v = 0; v < sizeof values / sizeof *values; ++v) {
            n += dti_print(got + n, size - n, formats[f], values[v]);
            n += dti_print(got + n, size - n, "\n");
        }
}

static void doubles_have_a_point(void **state) {
    (void)state;
    static char got[1 << 16], want[1 << 16];
    size_t n = 0;
    in_every_locale(print_doubles);
    print_doubles(got, sizeof got);
    for (size_t f = 0; f < sizeof formats / sizeof *formats; ++f) /* and they are the C library's own */
        for (size_t v = 0; v < sizeof values / sizeof *values; ++v) {
            n += (size_t)snprintf(want + n, sizeof want - n, formats[f], values[v]);
            n += (size_t)snprintf(want + n, sizeof want - n, "\n");
        }
    assert_string_equal(got, want);
}

static volatile size_t seven = 7; /* or the compiler warns that the text is cut */

#define SAME(...) do { \
        char one[300], other[300]; \
        const size_t length = dti_print(one, sizeof one, __VA_ARGS__); \
        assert_int_equal(length, snprintf(other, sizeof other, __VA_ARGS__)); \
        assert_string_equal(one, other); \
        memset(one, 'x', sizeof one), memset(other, 'x', sizeof other); \
        assert_int_equal(dti_print(one, seven, __VA_ARGS__), length); /* cut, and ended, as by snprintf */ \
        snprintf(other, seven, __VA_ARGS__); \
        assert_string_equal(one, other); \
        assert_int_equal(dti_print(NULL, 0, __VA_ARGS__), length); \
    } while (0)

static void every_conversion_is_printfs(void **state) {
    (void)state;
    int x = 0;
    SAME("plain, 100 %%");
    SAME("%d %i %5d|%-5d|%05d|%+d", 1, -2, 3, 4, 5, 6);
    SAME("%u %x %X %o %#x %c", 7u, 255u, 255u, 8u, 9u, 'c');
    SAME("%hd %hhd %ld %lld %lu %llu", (short)1, (signed char)2, -3L, -4LL, 5UL, 18446744073709551615ULL);
    SAME("%zu %016llx %jd %td", (size_t)6, 0xabcULL, (intmax_t)-7, (ptrdiff_t)8);
    SAME("%s|%10s|%-10s|%.2s|%.*s|%*s", "a", "bc", "de", "fgh", 3, "ijklm", 6, "n");
    SAME("%*.*f|%-*d|%*d|%.*f", 9, 3, 2.5, 4, 7, -4, 8, -1, 0.5);
    SAME("%p", (void *)&x);
    SAME("%Lg %.3Lf", 1.5L, 2.25L);
    SAME("%s,%d,%d,%s,%d,%d,%.4f,%.1f,%.6f,%.6f,%.4f,%016llx", "sync", 2, 2, "MNIST", 10, 128, 4.75, 126315.8, 0.25, 0.125, 0.9788, 77ULL);
}

static void write_csv(char *got, size_t size) {
    assert_int_equal(dt_csv_append("rows.csv", "a,b,c", "%.2f,%g,%s", 0.5, 0.25, "0.75 of it"), DT_OK);
    assert_int_equal(dt_csv_append("rows.csv", "a,b,c", "%.4f,%e,%d", 1234567.5, -1.5e-7, 3), DT_OK);
    file_into("rows.csv", got, size);
    assert_non_null(strstr(got, "\n0.50,0.25,0.75 of it\n"));
}

static void csv_rows_keep_their_columns(void **state) { (void)state; in_every_locale(write_csv); }

static void write_trace(char *got, size_t size) {
    dt_comm *comm = dt_comm_alone();
    assert_non_null(comm);
    assert_int_equal(dt_trace_start(comm, 10), DT_OK);
    dt_trace(comm, "work", comm->trace_zero + 0.25, comm->trace_zero + 0.375);
    assert_int_equal(dt_trace_write(comm, "trace.json"), DT_OK);
    dt_comm_free(comm);
    file_into("trace.json", got, size);
    assert_non_null(strstr(got, "\"ts\":250000.000,\"dur\":125000.000"));
}

static void traces_are_json(void **state) { (void)state; in_every_locale(write_trace); }

/* The CSV, the numbers at the axes and bars, and every pixel. No PNG: to compress it would take longer than all else here. */
static void write_chart(char *got, size_t size) {
    static const double x[] = { 0.25, 0.5, 0.75 }, y[] = { 1e-5, 2.5e-5, 7e-5 };
    static const char *const names[] = { "a", "b", "c" };
    size_t n = 0;
    for (int kind = 0; kind < 5; ++kind) { /* a tick format each, on both scales */
        int w = 0, h = 0;
        dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = "numbers", .y_format = (dt_tick_format)kind,
            .x_scale = kind % 2 ? DT_LOG10 : DT_LINEAR, .width = 240, .height = 180 });
        if (kind == 4) dt_chart_bars(c, &(dt_bars){ .groups = 3, .series = 1, .names = names, .y = x, .values = true });
        else dt_chart_line(c, &(dt_series){ .label = "line", .n = 3, .x = x, .y = y });
        const uint8_t *pixels = dt_chart_pixels(c, &w, &h);
        assert_non_null(pixels);
        for (int i = 0; i < c->text_count; ++i) n += (size_t)snprintf(got + n, size - n, "[%s]", c->texts[i].head);
        n += (size_t)snprintf(got + n, size - n, "\npixels %016llx\n", (unsigned long long)dt_hash(pixels, (size_t)(3 * w * h), 0));
        assert_int_equal(dt_chart_write_csv(c, "chart.png"), DT_OK);
        dt_chart_free(c);
        file_into("chart.csv", got + n, size - n);
        n += strlen(got + n);
    }
    assert_non_null(strstr(got, "[0.25]"));
    assert_non_null(strstr(got, "2.5e-05"));
}

static void charts_are_the_same(void **state) { (void)state; in_every_locale(write_chart); }

static void say_things(char *got, size_t size) {
    dt_net *net = dt_net_new(1, 8, 8), *bad = dt_net_new(1, 8, 8);
    dt_linear(net, "fc", 10);
    dt_dropout2d(bad, 1.5f);
    assert_int_equal(dt_net_build(net, &(dt_build_desc){ .batch = 16, .seed = 1 }), DT_OK);
    dt_net_summary(net, got, size);
    size_t n = strlen(got);
    dt_progress_line(&(dt_progress){ .epochs = 2, .steps = 4, .step = 1, .seconds = 1.5, .samples = 100 }, got + n, size - n);
    n = strlen(got);
    assert_int_equal(dt_net_build(bad, &(dt_build_desc){ .batch = 16 }), DT_EARG);
    n += (size_t)snprintf(got + n, size - n, "\n%s\n", dt_error());
    dt_sgd(net, &(dt_sgd_desc){ .lr = -0.5f });
    snprintf(got + n, size - n, "%s\n", dt_error());
    assert_non_null(strstr(got, "-0.5"));
    dt_net_free(net), dt_net_free(bad);
}

static void tables_and_sentences_are_the_same(void **state) { (void)state; in_every_locale(say_things); }

/* ---- Reading ---- */

static void read_numbers(char *got, size_t size) {
    static const char *const texts[] = { "0.01", "-2.5e-3", "1", "+1.", ".5", "1e300", "0.1000000000000000055511151231257827", "4.9e-324", "00012.50",
                                         "0,01", "1,5", "1.5.2", "", ".", "e5", "1e", "0.5 ", " 0.5", "abc", "nan", "inf", "0x10", "1e999", "--1", "1\xd9\xab" "5" };
    size_t n = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i) {
        double value = 77.0;
        const dt_err error = dt_number_parse(texts[i], &value);
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        n += (size_t)snprintf(got + n, size - n, "%s: %d %016llx %s\n", texts[i], (int)error, (unsigned long long)bits, error == DT_OK ? "" : dt_error());
        assert_int_equal(error == DT_OK, i < 9);
        if (error != DT_OK) assert_true(value > 76.9); /* left alone */
    }
}

static void numbers_are_read_with_a_point(void **state) {
    (void)state;
    char long_text[1000];
    double value = 0.0;
    in_every_locale(read_numbers);
    assert_int_equal(dt_number_parse("0.1", &value), DT_OK);
    assert_memory_equal(&value, &(double){ 0.1 }, sizeof value);
    memset(long_text, '1', sizeof long_text), long_text[sizeof long_text - 1] = '\0';
    assert_int_equal(dt_number_parse(long_text, &value), DT_EARG);
}

static void what_is_written_is_read_back(void **state) {
    (void)state;
    char text[64];
    for (int l = -1; l < LOCALES; ++l) {
        if (!setlocale(LC_ALL, l < 0 ? "C" : locales[l])) continue;
        for (uint32_t i = 0; i < 2000; ++i) {
            const dt_philox_block r = dt_philox(1, DT_RNG_TEST, 0, 0, i);
            uint64_t bits = (uint64_t)r.v[0] << 32 | r.v[1];
            double value, again = 0.0;
            memcpy(&value, &bits, sizeof value);
            if (!isfinite(value)) continue;
            dti_print(text, sizeof text, "%.17g", value);
            assert_int_equal(dt_number_parse(text, &again), DT_OK);
            assert_memory_equal(&value, &again, sizeof value);
        }
        setlocale(LC_ALL, "C");
    }
}

static void take_options(char *got, size_t size) {
    static const struct { char kind; const char *text; } given[] = { { 'f', "0.01" }, { 'f', "0,01" }, { 'f', "0" }, { 'z', "0" }, { 'z', "0.85" },
        { 'z', "-1" }, { 'f', "1e-3" }, { 'f', "1e31" }, { 'f', "nan" }, { 'f', "1e-60" }, { 'z', "x" } };
    size_t n = 0;
    for (size_t i = 0; i < sizeof given / sizeof *given; ++i) {
        float value = 0.0f;
        uint32_t bits;
        char why[256] = "";
        const option_desc o = { "lr", given[i].kind, &value, "" };
        const bool taken = set_option(&o, given[i].text, why, sizeof why);
        memcpy(&bits, &value, sizeof bits);
        n += (size_t)snprintf(got + n, size - n, "%s: %d %08x %s\n", given[i].text, taken, bits, why);
    }
    assert_non_null(strstr(got, "0.01: 1 3c23d70a \n"));
    assert_non_null(strstr(got, "0,01: 0 "));
}

static void options_take_a_point(void **state) { (void)state; in_every_locale(take_options); }

static void read_report(char *got, size_t size) {
    static report_data d;
    FILE *f = fopen("runs.csv", "w");
    assert_non_null(f);
    fputs("method,workers,cores,dataset,epochs,batch,seconds,images_per_second,train_loss,test_loss,test_accuracy,weights_hash\n"
          "sync,2,2,MNIST,10,128,4.7500,126315.8,0.250000,0.125000,0.9788,bb6daa86af0a0ff0\n", f);
    fclose(f);
    d = (report_data){ .method = { { .method = "sync", .name = "Synchronous SGD" } } };
    if (read_runs(&d, "runs.csv") != DT_OK) fail_msg("%s", dt_error());
    const worker_row *row = &d.method[0].row[0];
    assert_true(fabs(row->seconds.value[0] - 4.75) < 1e-12 && fabs(row->accuracy.value[0] - 0.9788) < 1e-12);
    dti_print(got, size, "%d workers %.17g s, accuracy %.17g, %s", row->workers, row->seconds.value[0], row->accuracy.value[0], row->hash);
    remove("runs.csv");
}

static void a_report_reads_its_csv(void **state) {
    (void)state;
    in_every_locale(read_report);
    assert_int_equal(write_report("nothing.csv"), DT_EIO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubles_have_a_point),
        cmocka_unit_test(every_conversion_is_printfs),
        cmocka_unit_test(csv_rows_keep_their_columns),
        cmocka_unit_test(traces_are_json),
        cmocka_unit_test(charts_are_the_same),
        cmocka_unit_test(tables_and_sentences_are_the_same),
        cmocka_unit_test(numbers_are_read_with_a_point),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(options_take_a_point),
        cmocka_unit_test(a_report_reads_its_csv),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
