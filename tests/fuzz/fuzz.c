/* Whatever bytes stand where a file, a command line or a chart's numbers are expected: each reader must refuse them with a
   sentence or read them, and neither crash, nor run over the end of something, nor take more memory than the input accounts
   for. libFuzzer draws the bytes, AddressSanitizer and UndefinedBehaviorSanitizer watch.

       make fuzz SECONDS=60        every target for a minute
       make fuzz-seeds             the seeds in tests/fuzz/NAME anew

   One program for all targets: FUZZ_TARGET in the environment names the one. With --seeds FOLDER as its only arguments, built
   with -DFUZZ_SEEDS (and without libFuzzer), it writes a few valid inputs of each instead. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include <stddef.h>
#include <stdlib.h>

/* The largest block that was asked for: no file may cost more than a multiple of its own size. */
static size_t most;
static void *counted(size_t bytes) { if (bytes > most) most = bytes; return malloc(bytes); }
#define DT_MALLOC(bytes) counted(bytes)
#define DT_FREE(block) free(block)

#define DTRAIN_IMPLEMENTATION
#define DTRAIN_WITH_CHARTS
#include "../../dtrain.h"

#include "../../chapters/options.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* of which we need the half that reads */
#include "../../chapters/ch12_report.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What is wrong beyond what the sanitizers see. */
#define HOLDS(what) do { if (!(what)) { fprintf(stderr, "does not hold: %s: %s\n", #what, dt_error()); abort(); } } while (0)

/* Each call of a reader must end in DT_OK, or in an error with one sentence. */
static void refused_or_read(dt_err error) {
    HOLDS(error == DT_OK || (strlen(dt_error()) > 8 && !strchr(dt_error(), '\n')));
}

/* ---- Files: bytes in memory that have a path */

typedef struct file { int fd; char path[64]; } file;

static file file_of(const uint8_t *data, size_t size) {
    file f = { .fd = memfd_create("fuzz", 0) };
    HOLDS(f.fd >= 0);
    for (size_t at = 0; at < size;) {
        const ssize_t n = write(f.fd, data + at, size - at);
        HOLDS(n > 0);
        at += (size_t)n;
    }
    snprintf(f.path, sizeof f.path, "/proc/self/fd/%d", f.fd);
    return f;
}

static void forget(const file *f) { close(f->fd); }

/* ---- IDX: two bytes say how long the labels' file is, which is what stands at the end */

static void idx(const uint8_t *data, size_t size) {
    if (size < 2) return;
    size_t labels = (size_t)(data[0] | data[1] << 8);
    if (labels > size - 2) labels = size - 2;
    const file i = file_of(data + 2, size - 2 - labels), l = file_of(data + size - labels, labels);
    dt_dataset d;
    const dt_err error = dt_idx_load(&d, i.path, l.path, 10);
    refused_or_read(error);
    if (error == DT_OK) {
        HOLDS((size_t)d.count * (size_t)d.channels * (size_t)d.height * (size_t)d.width + 16 == size - 2 - labels);
        for (uint32_t k = 0; k < d.count; ++k) HOLDS(d.labels[k] < 10);
        dt_dataset_free(&d);
    }
    forget(&i), forget(&l);
}

static void cifar(const uint8_t *data, size_t size) {
    const file f = file_of(data, size);
    const char *path[1] = { f.path };
    dt_dataset d;
    const dt_err error = dt_cifar10_load(&d, path, 1);
    refused_or_read(error);
    if (error == DT_OK) {
        HOLDS((size_t)d.count * 3073 == size);
        dt_dataset_free(&d);
    }
    forget(&f);
}

/* ---- Nets: whatever a file says, a net that could not load it has its values still */

static dt_net *small_net(void) {
    dt_net *net = dt_net_new(1, 8, 8);
    dt_conv2d(net, "conv", &(dt_conv2d_desc){ .out = 2, .kernel = 3 });
    dt_batchnorm2d(net, "bn", NULL);
    dt_linear(net, "fc", 3);
    HOLDS(dt_net_build(net, &(dt_build_desc){ .batch = 16, .seed = 1 }) == DT_OK);
    return net;
}

static void parameters(const uint8_t *data, size_t size) {
    static dt_net *net;
    if (!net) net = small_net();
    const file f = file_of(data, size);
    const uint64_t before = dt_net_hash(net);
    const dt_err error = dt_load(net, f.path);
    refused_or_read(error);
    HOLDS(error == DT_OK || dt_net_hash(net) == before);
    forget(&f);
}

typedef struct training { dt_net *net; dt_optimizer *opt; dt_batches it; dt_dataset data; uint8_t pixels[40 * 64], labels[40]; } training;

static training *small_training(void) {
    static training t;
    t.net = small_net();
    HOLDS((t.opt = dt_adam(t.net, &(dt_adam_desc){ DT_ADAM_DEFAULTS })) != NULL);
    for (size_t i = 0; i < sizeof t.pixels; ++i) t.pixels[i] = (uint8_t)(i * 7);
    for (size_t i = 0; i < sizeof t.labels; ++i) t.labels[i] = (uint8_t)(i % 3);
    t.data = (dt_dataset){ .pixels = t.pixels, .labels = t.labels, .count = 40, .channels = 1, .height = 8, .width = 8, .classes = 3 };
    HOLDS(dt_batches_init(&t.it, &t.data, &(dt_batches_desc){ .global_batch = 16, .shuffle = true, .seed = 1 }) == DT_OK);
    return &t;
}

static dt_checkpoint checkpoint_of(training *t) { return (dt_checkpoint){ .net = t->net, .opt = t->opt, .it = &t->it }; }

/* The hash in the file is mended, so that what lies behind that door is tried as well. */
static void checkpoint(const uint8_t *data, size_t size) {
    static training *t;
    if (!t) t = small_training();
    unsigned char *mended = malloc(size + 1);
    HOLDS(mended);
    memcpy(mended, data, size);
    if (size >= DTI_MARK_HASH + 16) {
        char hash[17];
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)dti_file_hash(mended, size));
        memcpy(mended + DTI_MARK_HASH, hash, 16);
    }
    const file f = file_of(mended, size);
    free(mended);
    dt_checkpoint c = checkpoint_of(t);
    const uint64_t before = dt_net_hash(t->net);
    const dt_err error = dt_checkpoint_load(&c, NULL, f.path);
    refused_or_read(error);
    HOLDS(error == DT_OK || dt_net_hash(t->net) == before);
    forget(&f);
}

/* ---- Rows: what ch12 --report reads, and what --csv appends to */

static void rows(const uint8_t *data, size_t size) {
    static report_data d;
    const file f = file_of(data, size);
    memset(&d, 0, sizeof d);
    d.method[0].method = "sync", d.method[1].method = "psgd", d.method[2].method = "hogwild";
    refused_or_read(read_runs(&d, f.path));
    read_epochs(&d, f.path);
    bool empty, torn;
    refused_or_read(dti_csv_look(f.path, "method,workers", &empty, &torn));
    forget(&f);
}

static void number(const uint8_t *data, size_t size) {
    char text[256];
    double v = 0.0;
    if (size >= sizeof text) size = sizeof text - 1;
    memcpy(text, data, size);
    text[size] = '\0';
    const dt_err error = dt_number_parse(text, &v); /* its sentence quotes what was typed, be it a newline */
    HOLDS(error != DT_OK || (v >= -DBL_MAX && v <= DBL_MAX));
}

/* ---- A command line: words that zeros end, for options of every kind */

static void options(const uint8_t *data, size_t size) {
    char text[512], why[512] = "", *argv[34] = { "fuzz" };
    int argc = 1, whole = 1, most_eight = 1;
    const char *word = NULL, *path = NULL;
    uint64_t seed = 0;
    float real = 0.0f;
    bool flag = false;
    dt_algorithm algorithm = DT_AUTO;
    const option_desc list[] = {
        { "whole", 'i', &whole, "N" }, { "eight", UP_TO(8), &most_eight, "N" }, DATA_OPTION(&word), SEED_OPTION(&seed),
        { "real", 'f', &real, "X" }, FIGURES_OPTION(&path), QUICK_OPTION(&flag), ALGORITHM_OPTION(&algorithm),
    };
    if (size >= sizeof text) size = sizeof text - 1;
    memcpy(text, data, size);
    text[size] = '\0';
    for (size_t at = 0; at < size && argc < 33; at += strlen(text + at) + 1) argv[argc++] = text + at;
    optind = 0;
    const options_read read = parse_options(argc, argv, list, sizeof list / sizeof *list, why, sizeof why);
    HOLDS((read == OPTIONS_WRONG) == (why[0] != '\0'));
    HOLDS(read != OPTIONS_TAKEN || (whole >= 1 && most_eight >= 1 && most_eight <= 8));
}

/* ---- A chart: its numbers and texts from the input */

static void chart(const uint8_t *data, size_t size) {
    double v[32] = { 0 };
    char text[64] = "";
    if (size < 8) return;
    const size_t n = (size - 8) / sizeof *v < 32 ? (size - 8) / sizeof *v : 32;
    memcpy(v, data + 8, n * sizeof *v);
    memcpy(text, data, 7);
    if (size > 8 + n * 8) memcpy(text + 7, data + 8 + n * 8, size - 8 - n * 8 < 50 ? size - 8 - n * 8 : 50);
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = text, .subtitle = text + 7, .x_label = text, .y_label = text,
                                                 .x_scale = data[0] % 3, .y_scale = data[1] % 3, .x_format = data[2] % 5,
                                                 .y_format = data[3] % 5, .width = 300, .height = 240 });
    int width = 0, height = 0;
    dt_chart_line(c, &(dt_series){ .label = text, .n = n / 2, .x = v, .y = v + n / 2, .style = data[4] % 4 });
    dt_chart_histogram(c, &(dt_histogram){ .label = text, .n = data[5] & 1 ? n : 0, .values = v, .bins = data[5] >> 1 });
    const dt_err error = dt_chart_check(c); /* also refuses what can be drawn, but has texts that touch */
    HOLDS(dt_chart_pixels(c, &width, &height) != NULL ? width == 300 && height == 240 : error != DT_OK);
    dt_chart_free(c);
}

/* ---- The targets */

static const struct target { const char *name; void (*run)(const uint8_t *data, size_t size); size_t factor; } targets[] = {
    { "idx", idx, 2 }, { "cifar", cifar, 2 }, { "parameters", parameters, 128 }, { "checkpoint", checkpoint, 128 },
    { "rows", rows, 0 }, { "number", number, 0 }, { "options", options, 0 }, { "chart", chart, 0 },
};

static const struct target *chosen(void) {
    const char *name = getenv("FUZZ_TARGET");
    for (size_t i = 0; name && i < sizeof targets / sizeof *targets; ++i)
        if (strcmp(targets[i].name, name) == 0) return &targets[i];
    fprintf(stderr, "FUZZ_TARGET is one of");
    for (size_t i = 0; i < sizeof targets / sizeof *targets; ++i) fprintf(stderr, " %s", targets[i].name);
    fprintf(stderr, "\n");
    exit(2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct target *t;
    static bool warm;
    if (!t) t = chosen();
    most = 0;
    t->run(data, size);
    /* the first call also builds what all others use */
    HOLDS(!warm || !t->factor || most <= t->factor * size + 65536);
    warm = true;
    return 0;
}

#ifdef FUZZ_SEEDS
/* ---- Valid inputs, from which libFuzzer makes others: FOLDER/NAME/1, 2 ... */

static const char *seeds;

static void seed(const char *name, int n, const void *data, size_t size) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", seeds, name);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%d", seeds, name, n);
    FILE *f = fopen(path, "wb");
    HOLDS(f && fwrite(data, 1, size, f) == size && fclose(f) == 0);
}

static void seed_file(const char *name, int n, const char *path) {
    static unsigned char bytes[1 << 16];
    FILE *f = fopen(path, "rb");
    HOLDS(f);
    const size_t size = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    seed(name, n, bytes, size);
}

static void seed_sets(void) {
    static const uint8_t images[] = { 12, 0, 0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
                                      13, 14, 15, 16, 0, 0, 8, 1, 0, 0, 0, 4, 0, 1, 2, 9 };
    static uint8_t colours[2 * 3073];
    seed("idx", 1, images, sizeof images);
    colours[3073] = 9;
    seed("cifar", 1, colours, sizeof colours);
    seed("cifar", 2, colours, 3073);
}

static void seed_nets(void) {
    char path[512];
    training *t = small_training();
    snprintf(path, sizeof path, "%s/net", seeds);
    HOLDS(dt_save(t->net, path) == DT_OK);
    seed_file("parameters", 1, path);
    dt_checkpoint c = checkpoint_of(t);
    HOLDS(dt_checkpoint_save(&c, path) == DT_OK);
    seed_file("checkpoint", 1, path);
    remove(path);
}

static void seed_words(void) {
    static const char csv[] = "method,workers,cores,dataset,epochs,batch,seconds,images_per_second,train_loss,test_loss,accuracy,weights\n"
                              "sync,2,2,MNIST,10,128,2.12,284158,0.1,0.06,0.9781,91579f75303db281\n";
    static const char line[] = "--whole\0" "3\0--eight=8\0--real\0" "0.01\0--quick\0--algorithm\0ring\0--data\0mnist";
    const double points[] = { 0.0, 1.0, 2.0, 4.0, 8.0, 16.0 };
    uint8_t picture[8 + sizeof points + 12] = { 0, 2, 1, 3, 0, 1, 'a', 0 };
    seed("rows", 1, csv, sizeof csv - 1);
    seed("options", 1, line, sizeof line - 1);
    seed("number", 1, "-0.5e-3", 7);
    seed("number", 2, "65536", 5);
    memcpy(picture + 8, points, sizeof points);
    memcpy(picture + 8 + sizeof points, "a title here", 12);
    seed("chart", 1, picture, sizeof picture);
}

int main(int argc, char **argv) {
    if (argc != 3 || strcmp(argv[1], "--seeds") != 0) { fprintf(stderr, "usage: seeds --seeds FOLDER\n"); return 2; }
    seeds = argv[2];
    seed_sets();
    seed_nets();
    seed_words();
    return 0;
}
#endif
