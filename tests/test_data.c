/* Data [S4]: IDX files whole and hostile, where datasets are looked for, the synthetic digits, partition, sampler,
   global batches. Files are made in a temporary folder, which is also the working directory, so that ./data is ours. */
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
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

static char home[64] = "/tmp/dtrain_data_XXXXXX";

static void expect_error(dt_err got, dt_err wanted, const char *part) {
    if (got != wanted || !strstr(dt_error(), part) || strchr(dt_error(), '\n'))
        fail_msg("wanted %s with \"%s\", got %s with \"%s\"", dt_err_name(wanted), part, dt_err_name(got), dt_error());
}
static void expect_ok(dt_err got) {
    if (got != DT_OK) fail_msg("got %s: %s", dt_err_name(got), dt_error());
}

/* ---- files ---- */

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    if (n) assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static size_t put32(uint8_t *out, uint32_t v) {
    for (int i = 0; i < 4; ++i) out[i] = (uint8_t)(v >> (24 - 8 * i));
    return 4;
}

/* The smallest set that is not symmetric in anything: 3 images of 2 rows and 4 columns. */
static uint8_t good_images[16 + 24], good_labels[8 + 3];

static void make_good(void) {
    put32(good_images, 0x803); put32(good_images + 4, 3); put32(good_images + 8, 2); put32(good_images + 12, 4);
    for (int i = 0; i < 24; ++i) good_images[16 + i] = (uint8_t)(10 * i);
    put32(good_labels, 0x801); put32(good_labels + 4, 3);
    good_labels[8] = 7; good_labels[9] = 0; good_labels[10] = 9;
}

static void write_set(const char *folder, const uint8_t *labels) {
    const char *names[2] = { "train", "t10k" };
    char path[256];
    for (int i = 0; i < 2; ++i) {
        snprintf(path, sizeof path, "%s/%s-images-idx3-ubyte", folder, names[i]);
        write_file(path, good_images, sizeof good_images);
        snprintf(path, sizeof path, "%s/%s-labels-idx1-ubyte", folder, names[i]);
        write_file(path, labels, sizeof good_labels);
    }
}

static void remove_set(const char *folder, const char *suffix) {
    const char *names[4] = { "train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1" };
    char path[256];
    for (int i = 0; i < 4; ++i) {
        snprintf(path, sizeof path, "%s/%s-ubyte%s", folder, names[i], suffix);
        remove(path);
    }
    rmdir(folder);
}

static void idx_whole(void **state) {
    (void)state;
    dt_dataset d;
    write_file("i", good_images, sizeof good_images);
    write_file("l", good_labels, sizeof good_labels);
    expect_ok(dt_idx_load(&d, "i", "l", 10));
    assert_int_equal(d.count, 3);
    assert_int_equal(d.channels, 1);
    assert_int_equal(d.height, 2);
    assert_int_equal(d.width, 4);
    assert_int_equal(d.classes, 10);
    assert_memory_equal(d.pixels, good_images + 16, 24);
    assert_memory_equal(d.labels, good_labels + 8, 3);
    assert_string_equal(d.source, "i");
    /* 0, 10, ... 230: mean 115, variance 100 (24^2 - 1) / 12 */
    assert_true(fabs((double)d.mean[0] - 115.0 / 255.0) < 1e-6);
    assert_true(fabs((double)d.std[0] - sqrt(100.0 * 575.0 / 12.0) / 255.0) < 1e-6);
    const uint64_t before = d.hash;
    dt_dataset_free(&d);
    assert_null(d.pixels);
    dt_dataset_free(&d); /* an empty one may be freed again */

    uint8_t other[sizeof good_labels];
    memcpy(other, good_labels, sizeof other);
    other[9] = 1;
    write_file("l", other, sizeof other);
    expect_ok(dt_idx_load(&d, "i", "l", 10));
    assert_true(d.hash != before); /* labels count */
    dt_dataset_free(&d);

    uint8_t flat[sizeof good_images];
    memcpy(flat, good_images, 16);
    memset(flat + 16, 50, 24);
    write_file("i", flat, sizeof flat);
    expect_ok(dt_idx_load(&d, "i", "l", 10));
    assert_true(d.std[0] == 1.0f); /* nothing to divide by */
    dt_dataset_free(&d);
}

/* One damage each: bytes to change, length to keep, and what the sentence must say. */
typedef struct hostile { int labels; int at; uint32_t value; int length; dt_err code; const char *says; } hostile;

static void idx_hostile(void **state) {
    (void)state;
    static const hostile cases[] = {
        { 0, -1, 0, 0, DT_EDATA, "i has 0 bytes, too few" },
        { 0, -1, 0, 3, DT_EDATA, "i has 3 bytes, too few" },
        { 0, -1, 0, 4, DT_EDATA, "i is cut off inside its header: 4 of 16 bytes" },
        { 0, -1, 0, 15, DT_EDATA, "i is cut off inside its header: 15 of 16 bytes" },
        { 0, -1, 0, 16, DT_EDATA, "i is truncated: 16 bytes, its header promises 40" },
        { 0, -1, 0, 39, DT_EDATA, "i is truncated: 39 bytes, its header promises 40" },
        { 0, -1, 0, 41, DT_EDATA, "i has 1 trailing bytes: 41 bytes, its header promises 40" },
        { 1, -1, 0, 7, DT_EDATA, "l is cut off inside its header: 7 of 8 bytes" },
        { 1, -1, 0, 10, DT_EDATA, "l is truncated: 10 bytes, its header promises 11" },
        { 1, -1, 0, 12, DT_EDATA, "l has 1 trailing bytes" },
        { 0, 0, 0x00000804, 40, DT_EDATA, "i begins with 0x00000804, an IDX file of images with 0x00000803" },
        { 0, 0, 0x03080000, 40, DT_EDATA, "i begins with 0x03080000" },
        { 0, 0, 0x00000801, 40, DT_EDATA, "i is an IDX file of labels where images are expected: are the two files swapped?" },
        { 1, 0, 0x00000803, 11, DT_EDATA, "l is an IDX file of images where labels are expected: are the two files swapped?" },
        { 0, 0, 0x1f8b0800, 40, DT_EDATA, "i is compressed with gzip" },
        { 1, 0, 0x1f8b0808, 11, DT_EDATA, "l is compressed with gzip" },
        { 0, 4, 0, 40, DT_EDATA, "i holds no images" },
        { 1, 4, 0, 11, DT_EDATA, "l holds no labels" },
        { 0, 4, 2, 32, DT_EDATA, "i holds 2 images, l holds 3 labels" },
        { 0, 4, 0xffffffff, 40, DT_EDATA, "i is truncated: 40 bytes, its header promises 34359738376" },
        { 1, 4, 0xffffffff, 11, DT_EDATA, "l is truncated: 11 bytes, its header promises 4294967303" },
        { 0, 8, 0, 40, DT_EDATA, "i says that its images are 0x4" },
        { 0, 12, 0, 40, DT_EDATA, "i says that its images are 2x0" },
        { 0, 8, 0xffffffff, 40, DT_EDATA, "i says that its images are 4294967295x4, outside of 1x1 to 4096x4096" },
        { 0, 12, 4097, 40, DT_EDATA, "i says that its images are 2x4097" },
        { 0, 8, 0x80000000, 40, DT_EDATA, "i says that its images are 2147483648x4" }, /* 3 * 2^31 * 4 wraps at 32 bits */
        { 0, 12, 4096, 40, DT_EDATA, "i is truncated: 40 bytes, its header promises 24592" },
        { 1, 8, 0x070a0900, 11, DT_EDATA, "l: label 10 at index 1, but there are 10 classes" },
        { 1, 8, 0x0700ff00, 11, DT_EDATA, "l: label 255 at index 2, but there are 10 classes" },
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; ++c) {
        const hostile *h = &cases[c];
        uint8_t images[64] = { 0 }, labels[64] = { 0 };
        memcpy(images, good_images, sizeof good_images);
        memcpy(labels, good_labels, sizeof good_labels);
        if (h->at >= 0) put32((h->labels ? labels : images) + h->at, h->value);
        write_file("i", images, h->labels ? sizeof good_images : (size_t)h->length);
        write_file("l", labels, h->labels ? (size_t)h->length : sizeof good_labels);
        dt_dataset d;
        memset(&d, 0xee, sizeof d);
        expect_error(dt_idx_load(&d, "i", "l", 10), h->code, h->says);
        assert_null(d.pixels);
        assert_int_equal(d.count, 0);
        assert_int_equal(live_blocks, 0);
    }
    dt_dataset d;
    write_file("i", good_images, sizeof good_images);
    write_file("l", good_labels, sizeof good_labels);
    expect_error(dt_idx_load(&d, "none/i", "l", 10), DT_EIO, "cannot open none/i: No such file");
    expect_error(dt_idx_load(&d, "i", "none", 10), DT_EIO, "cannot open none: No such file");
    expect_error(dt_idx_load(&d, ".", "l", 10), DT_EIO, ". is not a plain file but a folder");
    expect_error(dt_idx_load(&d, "l", "i", 10), DT_EDATA, "l is an IDX file of labels where images are expected");
    expect_error(dt_idx_load(&d, "i", "l", 0), DT_EARG, "0 classes");
    expect_error(dt_idx_load(&d, "i", "l", 9), DT_EDATA, "label 9 at index 2, but there are 9 classes");
    fail_at = requests + 1;
    expect_error(dt_idx_load(&d, "i", "l", 10), DT_ENOMEM, "cannot allocate");
    fail_at = 0;
    assert_int_equal(live_blocks, 0);
}

/* Random damage: whatever the bytes say, the answer is a dataset that fits them or an error, and nothing leaks. */
static void idx_fuzz(void **state) {
    (void)state;
    int loaded = 0;
    for (uint32_t n = 0; n < 3000; ++n) {
        uint8_t images[64] = { 0 }, labels[64] = { 0 };
        memcpy(images, good_images, sizeof good_images);
        memcpy(labels, good_labels, sizeof good_labels);
        const dt_philox_block r = dt_philox(7, DT_RNG_TEST, 0, n, 0), q = dt_philox(7, DT_RNG_TEST, 0, n, 1);
        images[r.v[0] % 24] = (uint8_t)(r.v[1] % 3 ? r.v[1] >> 24 : 0);
        labels[r.v[2] % 11] = (uint8_t)(r.v[3] % 3 ? r.v[3] >> 24 : 0);
        write_file("i", images, q.v[0] % 2 ? sizeof good_images : q.v[1] % 64);
        write_file("l", labels, q.v[2] % 2 ? sizeof good_labels : q.v[3] % 64);
        dt_dataset d;
        const dt_err err = dt_idx_load(&d, "i", "l", 10);
        if (err == DT_OK) {
            ++loaded;
            assert_int_equal(d.count * (uint32_t)(d.height * d.width), 24);
            for (uint32_t i = 0; i < d.count; ++i) assert_true(d.labels[i] < 10);
        } else {
            assert_int_equal(err, DT_EDATA);
            assert_null(d.pixels);
        }
        dt_dataset_free(&d);
        assert_int_equal(live_blocks, 0);
    }
    assert_in_range(loaded, 30, 2000); /* both outcomes were met */
}

/* ---- finding ---- */

static void find_by_name(void **state) {
    (void)state;
    static const uint8_t fashion_start[10] = { 9, 0, 0, 3, 0, 2, 7, 2, 5, 5 };
    dt_dataset train, test;
    unsetenv("DTRAIN_DATA");
    expect_error(dt_dataset_find(&train, &test, "mars"), DT_EARG,
                 "no dataset is named \"mars\": auto, mnist, fashion, cifar10 and synthetic are");
    expect_error(dt_dataset_find(&train, &test, "mnist"), DT_EIO, "no MNIST in ./data: run \"make data\"");
    /* what is known is known by its option, called by its name, and as large as it says */
    int known = 0;
    for (; dt_dataset_known(known); ++known) {
        const dt_dataset_kind *kind = dt_dataset_known(known);
        const dt_err err = dt_dataset_find(NULL, &test, kind->option);
        if (err != DT_OK) expect_error(err, DT_EIO, kind->name);
        else assert_true(!strcmp(test.name, kind->name) && test.height == kind->height && test.classes == kind->classes);
        dt_dataset_free(&test);
    }
    assert_true(known >= 3 && !dt_dataset_known(-1));
    setenv("DTRAIN_DATA", "far", 1);
    expect_error(dt_dataset_find(&train, &test, "fashion"), DT_EIO, "no Fashion-MNIST in DTRAIN_DATA=far (No such file or directory) nor in ./data");

    mkdir("data", 0700);
    mkdir("data/mnist", 0700);
    write_set("data/mnist", good_labels);
    expect_ok(dt_dataset_find(&train, &test, "mnist"));
    assert_string_equal(train.name, "MNIST");
    assert_string_equal(test.source, "data/mnist");
    assert_true(train.mean[0] == 0.1307f && train.std[0] == 0.3081f && test.mean[0] == 0.1307f);
    dt_dataset_free(&train);
    dt_dataset_free(&test);
    expect_error(dt_dataset_find(&train, &test, "fashion"), DT_EIO, "no Fashion-MNIST");

    /* $DTRAIN_DATA comes first, and may be the folder itself */
    mkdir("far", 0700);
    mkdir("far/MNIST", 0700);
    mkdir("far/MNIST/raw", 0700);
    write_set("far/MNIST/raw", good_labels);
    expect_ok(dt_dataset_find(&train, NULL, "auto"));
    assert_string_equal(train.source, "far/MNIST/raw");
    dt_dataset_free(&train);
    setenv("DTRAIN_DATA", "far/MNIST/raw", 1);
    expect_ok(dt_dataset_find(NULL, &test, "mnist"));
    assert_string_equal(test.source, "far/MNIST/raw");
    dt_dataset_free(&test);

    /* the same file names in a folder pointed at straight: the labels tell which set it is */
    uint8_t images[16 + 80] = { 0 }, labels[8 + 10];
    put32(images, 0x803); put32(images + 4, 10); put32(images + 8, 2); put32(images + 12, 4);
    put32(labels, 0x801); put32(labels + 4, 10);
    memcpy(labels + 8, fashion_start, 10);
    write_file("far/MNIST/raw/train-images-idx3-ubyte", images, sizeof images);
    write_file("far/MNIST/raw/train-labels-idx1-ubyte", labels, sizeof labels);
    expect_ok(dt_dataset_find(&train, &test, "fashion"));
    assert_string_equal(train.name, "Fashion-MNIST");
    assert_true(train.mean[0] == 0.2860f && train.std[0] == 0.3530f);
    dt_dataset_free(&train);
    dt_dataset_free(&test);
    expect_ok(dt_dataset_find(&train, NULL, "mnist"));
    assert_string_equal(train.source, "data/mnist");
    dt_dataset_free(&train);

    remove_set("far/MNIST/raw", "");
    rmdir("far/MNIST");
    rmdir("far");
    assert_int_equal(live_blocks, 0);
}

/* Under "auto" too, a set that is there but broken is an error and nothing else is taken for it. */
static void find_broken(void **state) {
    (void)state;
    dt_dataset train, test;
    unsetenv("DTRAIN_DATA");
    mkdir("data", 0700);
    mkdir("data/mnist", 0700);
    mkdir("data/fashion", 0700);
    write_set("data/mnist", good_labels);
    write_set("data/fashion", good_labels);
    write_file("data/mnist/t10k-labels-idx1-ubyte", good_labels, sizeof good_labels - 1);
    expect_error(dt_dataset_find(&train, &test, "auto"), DT_EDATA, "data/mnist/t10k-labels-idx1-ubyte is truncated");
    assert_null(train.pixels); /* the good half is given back */
    remove("data/mnist/t10k-labels-idx1-ubyte");
    expect_error(dt_dataset_find(&train, &test, "auto"), DT_EIO, "cannot open data/mnist/t10k-labels-idx1-ubyte");
    assert_null(test.pixels);
    assert_int_equal(live_blocks, 0);

    /* a file that is there but cannot be opened is no reason to look elsewhere (a link to itself: root may read all else) */
    remove_set("data/mnist", "");
    mkdir("data/mnist", 0700);
    assert_int_equal(symlink("train-images-idx3-ubyte", "data/mnist/train-images-idx3-ubyte"), 0);
    expect_error(dt_dataset_find(&train, &test, "auto"), DT_EIO, "cannot open data/mnist/train-images-idx3-ubyte");
    remove("data/mnist/train-images-idx3-ubyte");

    uint8_t turned[sizeof good_images];
    memcpy(turned, good_images, sizeof turned);
    put32(turned + 8, 4);
    put32(turned + 12, 2);
    write_set("data/mnist", good_labels);
    write_file("data/mnist/t10k-images-idx3-ubyte", turned, sizeof turned);
    expect_error(dt_dataset_find(&train, &test, "mnist"), DT_EDATA, "data/mnist: the training images are 2x4, the test images 4x2");

    /* gzip files alone do not count as present, and the advice says so */
    remove_set("data/mnist", "");
    mkdir("data/mnist", 0700);
    write_file("data/mnist/train-images-idx3-ubyte.gz", "x", 1);
    expect_error(dt_dataset_find(&train, &test, "mnist"), DT_EIO, "MNIST is only there as gzip files in data/mnist");
    expect_ok(dt_dataset_find(&train, &test, "auto"));
    assert_string_equal(train.name, "Fashion-MNIST");
    assert_string_equal(test.source, "data/fashion");
    dt_dataset_free(&train);
    dt_dataset_free(&test);
    /* a pipe in a file's place is refused, not waited for */
    remove_set("data/mnist", ".gz");
    mkdir("data/mnist", 0700);
    write_set("data/mnist", good_labels);
    remove("data/mnist/t10k-labels-idx1-ubyte");
    assert_int_equal(mkfifo("data/mnist/t10k-labels-idx1-ubyte", 0600), 0);
    expect_error(dt_dataset_find(&train, &test, "auto"), DT_EIO, "data/mnist/t10k-labels-idx1-ubyte is not a plain file but a pipe");
    remove("data/mnist/train-labels-idx1-ubyte");
    assert_int_equal(mkfifo("data/mnist/train-labels-idx1-ubyte", 0600), 0);
    setenv("DTRAIN_DATA", "data/mnist", 1);         /* here this file is also looked at to tell which set it is */
    expect_error(dt_dataset_find(&train, &test, "mnist"), DT_EIO, "data/mnist/train-labels-idx1-ubyte is not a plain file but a pipe");
    unsetenv("DTRAIN_DATA");
    remove_set("data/mnist", "");
    remove_set("data/fashion", "");
    rmdir("data");
    assert_int_equal(live_blocks, 0);
}

/* The names that some archives unpack to: train-images.idx3-ubyte. */
static void find_dotted(void **state) {
    (void)state;
    static const char *const pair[4][2] = {
        { "d/train-images-idx3-ubyte", "d/train-images.idx3-ubyte" }, { "d/train-labels-idx1-ubyte", "d/train-labels.idx1-ubyte" },
        { "d/t10k-images-idx3-ubyte", "d/t10k-images.idx3-ubyte" },   { "d/t10k-labels-idx1-ubyte", "d/t10k-labels.idx1-ubyte" },
    };
    dt_dataset train, test;
    mkdir("d", 0700);
    write_set("d", good_labels);
    setenv("DTRAIN_DATA", "d", 1);
    for (int i = 0; i < 5; ++i) {                   /* one after the other: every mixture is a set */
        expect_ok(dt_dataset_find(&train, &test, "auto"));
        assert_string_equal(train.name, "MNIST");
        assert_string_equal(test.source, "d");
        dt_dataset_free(&train);
        dt_dataset_free(&test);
        if (i < 4) assert_int_equal(rename(pair[i][0], pair[i][1]), 0);
    }
    remove(pair[3][1]);
    expect_error(dt_dataset_find(&train, &test, "auto"), DT_EIO, "cannot open d/t10k-labels-idx1-ubyte");
    for (int i = 0; i < 3; ++i) remove(pair[i][1]);
    write_file("d/train-images.idx3-ubyte.gz", "x", 1);
    expect_error(dt_dataset_find(&train, &test, "auto"), DT_EIO, "only there as gzip files in d: unpack them with gunzip");
    remove("d/train-images.idx3-ubyte.gz");
    rmdir("d");
    unsetenv("DTRAIN_DATA");
    assert_int_equal(live_blocks, 0);
}

/* Records of 1 + 3072 bytes whose pixel p of record r is (r + p) % 251, and its label r % 10. */
enum { RECORD = 3073 };
static void write_records(const char *path, uint32_t first, uint32_t records, long cut) {
    uint8_t *bytes = malloc((size_t)records * RECORD + 1);
    for (uint32_t r = 0; r < records; ++r) {
        bytes[r * RECORD] = (uint8_t)((first + r) % 10);
        for (uint32_t p = 0; p < 3072; ++p) bytes[r * RECORD + 1 + p] = (uint8_t)((first + r + p) % 251);
    }
    write_file(path, bytes, (size_t)((long)records * RECORD + cut));
    free(bytes);
}

static void cifar_whole(void **state) {
    (void)state;
    const char *const paths[] = { "i", "l" };
    dt_dataset d;
    write_records("i", 0, 7, 0);
    write_records("l", 7, 5, 0);
    expect_ok(dt_cifar10_load(&d, paths, 2)); /* one after the other, as one set */
    assert_true(d.count == 12 && d.channels == 3 && d.height == 32 && d.width == 32 && d.classes == 10);
    double sum[3] = { 0.0 };
    for (uint32_t r = 0; r < 12; ++r) {
        assert_int_equal(d.labels[r], r % 10);
        for (uint32_t p = 0; p < 3072; ++p) {
            assert_int_equal(d.pixels[r * 3072 + p], (r + p) % 251);
            sum[p / 1024] += (r + p) % 251 / 255.0 / (12 * 1024);
        }
    }
    for (int c = 0; c < 3; ++c) assert_true(fabs((double)d.mean[c] - sum[c]) < 1e-6 && d.std[c] > 0.2f && d.std[c] < 0.4f);
    assert_string_equal(d.name, "CIFAR-10");
    dt_dataset_free(&d);
    assert_int_equal(live_blocks, 0);
}

static void cifar_hostile(void **state) {
    (void)state;
    const char *const paths[] = { "i", "l" };
    static const uint8_t zipped[] = { 0x1f, 0x8b, 8, 0 }, pickle[] = { 0x80, 2, 0x7d };
    dt_dataset d;
    write_records("i", 0, 3, 0);
    write_records("l", 3, 3, -1);
    expect_error(dt_cifar10_load(&d, paths, 2), DT_EDATA, "l has 9218 bytes, which are no whole records of 3073 bytes");
    write_records("l", 3, 3, 1);
    expect_error(dt_cifar10_load(&d, paths, 2), DT_EDATA, "l has 9220 bytes");
    write_file("l", "", 0);
    expect_error(dt_cifar10_load(&d, paths, 2), DT_EDATA, "l has 0 bytes");
    write_file("l", zipped, sizeof zipped);
    expect_error(dt_cifar10_load(&d, paths, 2), DT_EDATA, "l is compressed with gzip: unpack it with gunzip");
    write_file("l", pickle, sizeof pickle);
    expect_error(dt_cifar10_load(&d, paths, 2), DT_EDATA, "l is of CIFAR-10's Python version");
    write_records("l", 3, 3, 0);
    FILE *f = fopen("l", "r+b");
    assert_true(f && fseek(f, 2 * RECORD, SEEK_SET) == 0 && fputc(10, f) == 10 && fclose(f) == 0);
    expect_error(dt_cifar10_load(&d, paths, 2), DT_EDATA, "l: label 10 in record 2, but there are 10 classes");
    assert_true(d.count == 0 && !d.pixels);
    remove("l");
    expect_error(dt_cifar10_load(&d, paths, 2), DT_EIO, "cannot open l: No such file");
    expect_error(dt_cifar10_load(&d, (const char *const[]){ "." }, 1), DT_EIO, ". is not a plain file but a folder");
    fail_at = requests + 1;
    expect_error(dt_cifar10_load(&d, paths, 1), DT_ENOMEM, "cannot allocate");
    fail_at = 0;
    assert_int_equal(live_blocks, 0);
}

/* By name, and never under "auto"; with as many records as were published. Files are holes: zeros that take no room. */
static void find_cifar10(void **state) {
    (void)state;
    char path[64];
    dt_dataset train, test;
    unsetenv("DTRAIN_DATA");
    mkdir("data", 0700);
    mkdir("data/cifar-10-batches-bin", 0700);
    write_file("data/cifar-10-batches-bin/data_batch_2.bin.gz", "x", 1);
    expect_error(dt_dataset_find(&train, &test, "cifar10"), DT_EIO, "CIFAR-10 is only there as gzip files in data/cifar-10-batches-bin");
    remove("data/cifar-10-batches-bin/data_batch_2.bin.gz");
    expect_error(dt_dataset_find(&train, &test, "cifar10"), DT_EIO,
                 "no CIFAR-10 in ./data: run \"make data\", or set DTRAIN_DATA to the folder above cifar10/data_batch_1.bin");
    for (int i = 0; i < 6; ++i) {
        snprintf(path, sizeof path, "data/cifar-10-batches-bin/%s", dti_cifar_names[i]);
        if (i == 3) expect_error(dt_dataset_find(&train, &test, "cifar10"), DT_EIO, "cannot open data/cifar-10-batches-bin/data_batch_4.bin");
        write_file(path, "", 0);
        assert_int_equal(truncate(path, 10000L * RECORD), 0);
    }
    expect_ok(dt_dataset_find(&train, &test, "cifar10"));
    assert_true(train.count == 50000 && test.count == 10000 && !strcmp(train.name, "CIFAR-10"));
    assert_true(train.mean[2] == 0.4465f && test.std[1] == 0.2435f);
    assert_string_equal(test.source, "data/cifar-10-batches-bin");
    dt_dataset_free(&train);
    dt_dataset_free(&test);
    expect_ok(dt_dataset_find(NULL, &test, "auto"));
    assert_string_equal(test.name, "synthetic digits");
    dt_dataset_free(&test);
    assert_int_equal(truncate(path, 9999L * RECORD), 0);
    expect_error(dt_dataset_find(NULL, &test, "cifar10"), DT_EDATA, "test_batch.bin holds 9999 records, CIFAR-10's files hold 10000");
    for (int i = 0; i < 6; ++i) {
        snprintf(path, sizeof path, "data/cifar-10-batches-bin/%s", dti_cifar_names[i]);
        remove(path);
    }
    rmdir("data/cifar-10-batches-bin");
    rmdir("data");
    assert_int_equal(live_blocks, 0);
}

/* What $DTRAIN_DATA names is asked for: "auto" takes nothing else for it, and says what stands there. */
static void find_what_the_environment_names(void **state) {
    (void)state;
    dt_dataset train, test;
    mkdir("data", 0700);
    mkdir("data/mnist", 0700);
    write_set("data/mnist", good_labels);
    setenv("DTRAIN_DATA", "far", 1);
    const char *none = "no MNIST or Fashion-MNIST in DTRAIN_DATA=far ";
    expect_error(dt_dataset_find(&train, &test, "auto"), DT_EIO, none);
    expect_error(dt_dataset_find(&train, &test, NULL), DT_EIO, "(No such file or directory): run \"make data\", or set DTRAIN_DATA");
    write_file("far", "x", 1);
    expect_error(dt_dataset_find(&train, &test, "auto"), DT_EIO, "DTRAIN_DATA=far (Not a directory)");
    remove("far");
    mkdir("far", 0700);
    expect_error(dt_dataset_find(&train, &test, "auto"), DT_EIO, "DTRAIN_DATA=far (it is empty)");
    write_file("far/a\nb", "x", 1);
    expect_error(dt_dataset_find(&train, &test, "auto"), DT_EIO, "DTRAIN_DATA=far (it holds a?b): ");
    mkdir("far/fashion", 0700);
    mkdir("far/c", 0700);
    mkdir("far/d", 0700);
    expect_error(dt_dataset_find(&train, &test, "auto"), DT_EIO, " and 1 more): ");
    write_file("far/fashion/t10k-labels-idx1-ubyte.gz", "x", 1);
    expect_error(dt_dataset_find(&train, &test, "auto"), DT_EIO,
                 "MNIST or Fashion-MNIST is only there as gzip files in far/fashion: unpack them with gunzip");
    expect_ok(dt_dataset_find(&train, &test, "mnist")); /* by its own name, from wherever it is */
    assert_string_equal(train.source, "data/mnist");
    dt_dataset_free(&train);
    dt_dataset_free(&test);
    expect_ok(dt_dataset_find(NULL, &test, "synthetic"));
    dt_dataset_free(&test);
    setenv("DTRAIN_DATA", "", 1);                   /* as if it were not set */
    expect_ok(dt_dataset_find(NULL, &test, "auto"));
    assert_string_equal(test.source, "data/mnist");
    dt_dataset_free(&test);
    char *lengthy = malloc(5000);
    memset(lengthy, 'n', 4999);
    lengthy[4999] = '\0';
    setenv("DTRAIN_DATA", lengthy, 1);
    expect_error(dt_dataset_find(&train, &test, "auto"), DT_EIO, "(File name too long)");
    free(lengthy);
    unsetenv("DTRAIN_DATA");
    remove("far/fashion/t10k-labels-idx1-ubyte.gz");
    remove("far/a\nb");
    rmdir("far/fashion"); rmdir("far/c"); rmdir("far/d"); rmdir("far");
    remove_set("data/mnist", "");
    rmdir("data");
    assert_int_equal(live_blocks, 0);
}

static void find_synthetic(void **state) {
    (void)state;
    dt_dataset train, test, tail;
    unsetenv("DTRAIN_DATA");
    remove_set("data/mnist", "");
    rmdir("data");
    expect_ok(dt_dataset_find(&train, &test, "auto"));
    assert_string_equal(train.name, "synthetic digits");
    assert_int_equal(train.count, 60000);
    assert_int_equal(test.count, 10000);
    assert_true(test.mean[0] == train.mean[0] && test.std[0] == train.std[0]);
    expect_ok(dt_dataset_synthetic(&tail, 60008, 1));
    assert_memory_equal(tail.pixels, train.pixels, 784);
    assert_memory_equal(tail.pixels + 60000u * 784u, test.pixels, 8 * 784);
    assert_memory_equal(tail.labels + 60000, test.labels, 8);
    int per_class[10] = { 0 };
    for (uint32_t i = 0; i < train.count; ++i) per_class[train.labels[i]]++;
    for (int c = 0; c < 10; ++c) assert_in_range(per_class[c], 5600, 6400);
    dt_dataset_free(&train);
    dt_dataset_free(&test);
    dt_dataset_free(&tail);
    assert_int_equal(live_blocks, 0);
}

/* ---- synthetic digits ---- */

static void synthetic_digits(void **state) {
    (void)state;
    dt_dataset a, b;
    expect_error(dt_dataset_synthetic(&a, 0, 1), DT_EARG, "at least 1 image");
    expect_ok(dt_dataset_synthetic(&a, 2000, 1));
    assert_int_equal(a.height, 28);
    assert_int_equal(a.width, 28);
    assert_int_equal(a.classes, 10);
    /* every compiler, instruction set and machine draws these bits: pinned */
    assert_int_equal(a.hash, 0x4107dfe5a862100bu);

    expect_ok(dt_dataset_synthetic(&b, 100, 1)); /* image i does not depend on how many there are */
    assert_memory_equal(a.pixels, b.pixels, 100 * 784);
    assert_memory_equal(a.labels, b.labels, 100);
    dt_dataset_free(&b);
    expect_ok(dt_dataset_synthetic(&b, 2000, 2));
    int same = 0;
    for (uint32_t i = 0; i < 2000; ++i) same += memcmp(a.pixels + i * 784u, b.pixels + i * 784u, 784) == 0;
    assert_int_equal(same, 0);
    dt_dataset_free(&b);

    /* ink in the middle, on every image and of every class; no two neighbours alike */
    for (uint32_t i = 0; i < 2000; ++i) {
        const uint8_t *x = a.pixels + i * 784u;
        int bright = 0;
        for (int p = 0; p < 784; ++p) bright += x[p] > 110;
        if (bright < 20 || bright > 400) fail_msg("image %u, a %u, has %d bright pixels", i, a.labels[i], bright);
        if (i) assert_memory_not_equal(x, x - 784, 784);
    }
    dt_dataset_free(&a);
    assert_int_equal(live_blocks, 0);
}

static void view(void **state) {
    (void)state;
    dt_dataset d, v;
    expect_ok(dt_dataset_synthetic(&d, 50, 3));
    expect_ok(dt_dataset_view(&v, &d, 40, 10));
    assert_int_equal(v.count, 10);
    assert_ptr_equal(v.pixels, d.pixels + 40 * 784);
    assert_ptr_equal(v.labels, d.labels + 40);
    assert_true(v.mean[0] == d.mean[0] && v.hash != d.hash);
    dt_dataset_free(&v); /* does not take the blocks along */
    assert_int_equal(d.labels[49] < 10, 1);
    expect_error(dt_dataset_view(&v, &d, 40, 11), DT_EARG, "a view of 11 images from 40 on leaves");
    expect_error(dt_dataset_view(&v, &d, 50, 1), DT_EARG, "from 50 on");
    expect_error(dt_dataset_view(&v, &d, 1, UINT32_MAX), DT_EARG, "leaves");
    expect_error(dt_dataset_view(&v, &d, 1, 0), DT_EARG, "a view of 0 images");
    void *const block = d.block;
    expect_ok(dt_dataset_view(&d, &d, 0, 50)); /* in place: from now on a view, so this leaks unless given back by hand */
    assert_null(d.block);
    d.block = block;
    dt_dataset_free(&d);
    assert_int_equal(live_blocks, 0);
}

/* ---- a program's own arrays ---- */

/* Two features far from each other and from zero, each brought near zero by its own mean and deviation; labels and targets. */
static void arrays(void **state) {
    (void)state;
    enum { N = 40 };
    static float x[N][2], t[N][3], lanes[2 * DT_LANES];
    static uint8_t labels[N], bytes[N][2];
    for (int n = 0; n < N; ++n) {
        x[n][0] = 1e6f + 0.25f * (float)n, x[n][1] = -0.001f * (float)n; /* E[x^2] - E[x]^2 would lose the first one's spread */
        bytes[n][0] = (uint8_t)n, bytes[n][1] = (uint8_t)(255 - 3 * n);
        labels[n] = (uint8_t)(n % 3);
        for (int k = 0; k < 3; ++k) t[n][k] = (float)(n * k);
    }
    const double middle = (N - 1) / 2.0, spread = sqrt((N * N - 1) / 12.0);
    dt_dataset d, v;
    expect_ok(dt_dataset_from(&d, &(dt_arrays){ .count = N, .channels = 2, .values = &x[0][0], .targets = &t[0][0], .target_width = 3 }));
    assert_true(d.values == &x[0][0] && d.height == 1 && d.width == 1 && d.classes == 3 && live_blocks == 1); /* nothing copied */
    assert_true(fabs((double)d.mean[0] - (1e6 + 0.25 * middle)) < 0.07 && fabs((double)d.std[0] - 0.25 * spread) < 1e-5);
    assert_true(fabs((double)d.mean[1] + 0.001 * middle) < 1e-8 && fabs((double)d.std[1] - 0.001 * spread) < 1e-8);
    dt_batches it;
    dt_batch b;
    expect_ok(dt_dataset_view(&v, &d, 7, 20));
    expect_ok(dt_batches_init(&it, &v, &(dt_batches_desc){ .global_batch = 16 }));
    assert_true(dt_batches_next(&it, &b) && b.values == &x[7][0] && b.targets == &t[7][0] && b.target_width == 3 && !b.labels && !b.pixels);
    assert_true(dt_batches_next(&it, &b) && b.count == 4);
    dti_batch_lanes(&b, 2, 1, 1, 0, lanes);
    for (int c = 0; c < 2; ++c)
        for (int l = 0; l < DT_LANES; ++l) {
            const double want = l < 4 ? ((double)x[7 + 16 + l][c] - (double)d.mean[c]) / (double)d.std[c] : 0.0;
            if (fabs((double)lanes[c * DT_LANES + l] - want) > (c == 0 ? 0.02 : 1e-5)) /* a float has 2^-4 left beside 1e6 */
                fail_msg("feature %d, lane %d: %g, wanted %g", c, l, (double)lanes[c * DT_LANES + l], want);
        }
    dt_batches_free(&it);
    const uint64_t hash = d.hash;
    dt_dataset_free(&d);
    t[39][2] += 1.0f; /* what is wanted counts */
    expect_ok(dt_dataset_from(&d, &(dt_arrays){ .count = N, .channels = 2, .values = &x[0][0], .targets = &t[0][0], .target_width = 3, .unscaled = true }));
    assert_true(d.hash != hash && !d.mean && !d.std && live_blocks == 0);
    b = (dt_batch){ .values = d.values, .index = (const uint32_t[]){ 1, 0 }, .count = 2, .global_count = 2 };
    dti_batch_lanes(&b, 2, 1, 1, 0, lanes);
    assert_true(lanes[0] == x[1][0] && lanes[1] == x[0][0] && lanes[DT_LANES] == x[1][1] && lanes[2] == 0.0f); /* as they are */

    /* bytes are scaled as ever; a mean and a deviation that are given are taken */
    const float mean[2] = { 0.5f, 0.25f }, std[2] = { 0.5f, 2.0f };
    expect_ok(dt_dataset_from(&d, &(dt_arrays){ .name = "own", .count = N, .channels = 2, .pixels = &bytes[0][0], .labels = labels, .classes = 3,
                                                .mean = mean, .std = std }));
    assert_true(d.mean[1] == 0.25f && d.std[1] == 2.0f && d.mean != mean && !strcmp(d.name, "own"));
    dt_dataset_free(&d);
    expect_ok(dt_dataset_from(&d, &(dt_arrays){ .count = N, .channels = 2, .pixels = &bytes[0][0], .labels = labels, .classes = 3 }));
    assert_true(fabs((double)d.mean[0] - middle / 255.0) < 1e-7);
    dt_dataset_free(&d);
    assert_int_equal(live_blocks, 0);
}

static void arrays_refused(void **state) {
    (void)state;
    static float x[4] = { 1, 2, 3, 4 }, bad[4] = { 1, 2, NAN, 4 };
    static uint8_t labels[4] = { 0, 1, 2, 1 };
    const float mean[1] = { 0.5f };
    const struct { dt_arrays a; dt_err code; const char *says; } cases[] = {
        { { .count = 0, .channels = 1, .values = x, .labels = labels, .classes = 3 }, DT_EARG, "the dataset is empty" },
        { { .count = 4, .channels = 1, .labels = labels, .classes = 3 }, DT_EARG, "the dataset is empty" },
        { { .count = 4, .channels = 1, .values = x }, DT_EARG, "neither labels nor targets" },
        { { .count = 4, .channels = 1, .values = x, .pixels = labels, .labels = labels, .classes = 3 }, DT_EARG, "a dataset has one" },
        { { .count = 4, .channels = 1, .values = x, .targets = x, .target_width = 1, .labels = labels, .classes = 3 }, DT_EARG, "a dataset has one" },
        { { .count = 4, .channels = 1, .values = x, .labels = labels, .classes = 3, .mean = mean }, DT_EARG, "of mean and std both or none" },
        { { .count = 4, .channels = 0, .values = x, .labels = labels, .classes = 3 }, DT_ESHAPE, "images of 0 x 1 x 1" },
        { { .count = 4, .channels = 1, .height = -1, .values = x, .labels = labels, .classes = 3 }, DT_ESHAPE, "images of 1 x -1 x 1" },
        { { .count = 4, .channels = 1, .values = x, .targets = x }, DT_ESHAPE, "rows of 0 targets; at least 1" },
        { { .count = UINT32_MAX, .channels = INT32_MAX, .height = INT32_MAX, .values = x, .targets = x, .target_width = 1 }, DT_ESHAPE, "more than memory can hold" },
        { { .count = 4, .channels = 1, .values = x, .labels = labels, .classes = 2 }, DT_EDATA, "sample 2 has label 2, but there are 2 classes" },
        { { .count = 4, .channels = 1, .values = x, .labels = labels, .classes = 257 }, DT_EARG, "257 classes, outside of 1 to 256" },
        { { .count = 2, .channels = 2, .values = bad, .labels = labels, .classes = 3 }, DT_EDATA, "value 0 of sample 1 is nan" },
        { { .count = 4, .channels = 1, .values = x, .targets = bad, .target_width = 1 }, DT_EDATA, "target 0 of sample 2 is nan" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        dt_dataset d;
        memset(&d, 0xee, sizeof d);
        expect_error(dt_dataset_from(&d, &cases[i].a), cases[i].code, cases[i].says);
        assert_true(!d.values && !d.block && d.count == 0);
    }
    dt_dataset d;
    dt_batches it;
    fail_at = requests + 1;
    expect_error(dt_dataset_from(&d, &(dt_arrays){ .count = 4, .channels = 1, .values = x, .labels = labels, .classes = 3 }), DT_ENOMEM, "cannot allocate");
    fail_at = 0;
    expect_ok(dt_dataset_from(&d, &(dt_arrays){ .count = 4, .channels = 1, .values = x, .labels = labels, .classes = 3 }));
    const dt_augment flips = { .flip = 0.5f };
    expect_error(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 4, .augment = &flips }), DT_EARG, "augment is for images of bytes");
    dt_dataset_free(&d);
    assert_int_equal(live_blocks, 0);
}

/* ---- partition ---- */

enum { MOST = 60000 };
static uint32_t rows[MOST], more_rows[MOST], seen[MOST];

static void expect_permutation(const uint32_t *index, uint32_t n) {
    memset(seen, 0, n * sizeof *seen);
    for (uint32_t i = 0; i < n; ++i) {
        assert_true(index[i] < n);
        assert_int_equal(seen[index[i]]++, 0);
    }
}

static void partition(void **state) {
    (void)state;
    uint32_t start[20];
    const float s0[3] = { 0.7f, 0.2f, 0.1f }, thirds[3] = { 0.333f, 0.333f, 0.334f }, none[3] = { 0.0f, 1.0f, 0.0f };
    expect_ok(dt_partition(rows, start, s0, 3, MOST, 1234));
    assert_int_equal(start[0], 0);
    assert_int_equal(start[1], 42000);
    assert_int_equal(start[2], 54000);
    assert_int_equal(start[3], 60000);
    expect_permutation(rows, MOST);
    dt_permutation(more_rows, MOST, 1234, DT_RNG_PARTITION, 0); /* not the shuffle of epoch 0, whose seed may be the same */
    assert_memory_equal(rows, more_rows, sizeof rows);
    uint32_t fixed = 0;
    for (uint32_t i = 0; i < MOST; ++i) fixed += rows[i] == i;
    assert_true(fixed < 12); /* shuffled: 1 expected */
    expect_ok(dt_partition(more_rows, start, s0, 3, MOST, 1234));
    assert_memory_equal(rows, more_rows, sizeof rows);
    expect_ok(dt_partition(more_rows, start, s0, 3, MOST, 1235));
    assert_memory_not_equal(rows, more_rows, sizeof rows);
    expect_ok(dt_partition(rows, start, none, 3, 10, 1));
    assert_int_equal(start[1], 0);
    assert_int_equal(start[2], 10);

    const uint32_t sizes[] = { 0, 1, 2, 7, 100, 101, 997, MOST };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s) {
        const uint32_t n = sizes[s];
        for (uint32_t k = 1; k < 20; ++k) {
            expect_ok(dt_partition(rows, start, NULL, k, n, k));
            assert_int_equal(start[0], 0);
            assert_int_equal(start[k], n);
            for (uint32_t i = 0; i < k; ++i) assert_in_range(start[i + 1] - start[i], n / k, n / k + (n % k != 0));
            if (n < 2000) expect_permutation(rows, n);
        }
        expect_ok(dt_partition(rows, start, thirds, 3, n, 5));
        assert_true(start[0] == 0 && start[1] <= start[2] && start[2] <= start[3] && start[3] == n);
    }
    const float bad[2] = { 0.5f, 0.4f }, negative[2] = { 1.5f, -0.5f }, nan_part[2] = { 0.5f, NAN };
    expect_error(dt_partition(rows, start, bad, 2, 10, 1), DT_EARG, "add up to 0.9");
    expect_error(dt_partition(rows, start, negative, 2, 10, 1), DT_EARG, "fraction 0 is 1.5");
    expect_error(dt_partition(rows, start, nan_part, 2, 10, 1), DT_EARG, "fraction 1 is nan");
    expect_error(dt_partition(rows, start, NULL, 0, 10, 1), DT_EARG, "at least 1 share");
}

/* ---- sampler ---- */

/* What torch.utils.data.DistributedSampler(range(n), P, rank, shuffle=False, drop_last) yields, rank after rank. */
typedef struct deal { uint32_t n; int ranks; bool drop_last; uint32_t per_rank; uint32_t want[16]; } deal;
static const deal deals[] = {
    { 12, 4, false, 3, { 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11 } },
    { 12, 4, true, 3, { 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11 } },
    { 10, 4, false, 3, { 0, 4, 8, 1, 5, 9, 2, 6, 0, 3, 7, 1 } },
    { 10, 4, true, 2, { 0, 4, 1, 5, 2, 6, 3, 7 } },
    { 7, 3, false, 3, { 0, 3, 6, 1, 4, 0, 2, 5, 1 } },
    { 7, 3, true, 2, { 0, 3, 1, 4, 2, 5 } },
    { 2, 5, false, 1, { 0, 1, 0, 1, 0 } }, /* the head is repeated more than once */
    { 1, 3, false, 1, { 0, 0, 0 } },
    { 2, 5, true, 0, { 0 } },
    { 5, 1, true, 5, { 0, 1, 2, 3, 4 } },
};

static void sampler_order(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof deals / sizeof *deals; ++i)
        for (int r = 0; r < deals[i].ranks; ++r) {
            const deal *d = &deals[i];
            dt_sampler s;
            expect_ok(dt_sampler_init(&s, &(dt_sampler_desc){ .count = d->n, .rank = r, .ranks = d->ranks, .drop_last = d->drop_last }));
            assert_int_equal(s.per_rank, d->per_rank);
            if (d->per_rank) assert_memory_equal(s.index, d->want + (uint32_t)r * d->per_rank, d->per_rank * sizeof *s.index);
            dt_sampler_free(&s);
        }
    assert_int_equal(live_blocks, 0);
}

static void sampler_shuffled(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 7; ++ranks) {
        uint32_t order[101], count[101] = { 0 }, extra = 0;
        dt_permutation(order, 101, 42, DT_RNG_SHUFFLE, 3);
        for (int r = 0; r < ranks; ++r) {
            dt_sampler s;
            expect_ok(dt_sampler_init(&s, &(dt_sampler_desc){ .count = 101, .rank = r, .ranks = ranks, .shuffle = true, .seed = 42 }));
            uint32_t first[101];
            memcpy(first, s.index, s.per_rank * sizeof *first);
            const int before = requests;
            dt_sampler_set_epoch(&s, 3);
            assert_memory_not_equal(first, s.index, s.per_rank * sizeof *first);
            for (uint32_t i = 0; i < s.per_rank; ++i) {
                assert_int_equal(s.index[i], order[(i * (uint32_t)ranks + (uint32_t)r) % 101]);
                count[s.index[i]]++;
            }
            dt_sampler_set_epoch(&s, 0);
            assert_memory_equal(first, s.index, s.per_rank * sizeof *first);
            assert_int_equal(requests, before);
            dt_sampler_free(&s);
        }
        for (int i = 0; i < 101; ++i) {
            assert_in_range(count[i], 1, 2);
            extra += count[i] - 1;
        }
        assert_int_equal(extra, ((uint32_t)ranks - 101 % (uint32_t)ranks) % (uint32_t)ranks);
    }
    dt_sampler s;
    expect_error(dt_sampler_init(&s, &(dt_sampler_desc){ .count = 0, .ranks = 1 }), DT_EARG, "no images");
    expect_error(dt_sampler_init(&s, &(dt_sampler_desc){ .count = 9 }), DT_EARG, "rank 0 of 0 ranks");
    expect_error(dt_sampler_init(&s, &(dt_sampler_desc){ .count = 9, .rank = 2, .ranks = 2 }), DT_EARG, "rank 2 of 2 ranks");
    for (int n = 1; n <= 2; ++n) {
        fail_at = requests + n;
        expect_error(dt_sampler_init(&s, &(dt_sampler_desc){ .count = 9, .ranks = 2 }), DT_ENOMEM, "allocate");
        fail_at = 0;
    }
    assert_int_equal(live_blocks, 0);
}

/* ---- global batches ---- */

static dt_dataset tiny(uint32_t n) {
    static uint8_t pixels[MOST], labels[MOST];
    return (dt_dataset){ .count = n, .channels = 1, .height = 1, .width = 1, .classes = 10, .pixels = pixels, .labels = labels };
}

/* One epoch for every rank of `size`; place[p] becomes the row at position p, counted in `seen`. */
static void run_epoch(const dt_dataset *d, dt_batches_desc desc, int size, uint32_t *place, uint32_t want_count) {
    const uint32_t batch = desc.global_batch ? desc.global_batch : desc.per_rank_batch * (uint32_t)size;
    uint32_t total = 0;
    for (uint32_t i = 0; i < MOST; ++i) place[i] = UINT32_MAX;
    for (int r = 0; r < size; ++r) {
        dt_batches it;
        dt_batch b;
        uint32_t step = 0;
        desc.rank = r;
        desc.size = size;
        expect_ok(dt_batches_init(&it, d, &desc));
        assert_int_equal(it.count, want_count);
        for (; dt_batches_next(&it, &b); ++step) {
            const uint32_t begin = step * batch, global = want_count - begin < batch ? want_count - begin : batch;
            const uint32_t groups = (global + 15) / 16;
            assert_int_equal(b.global_count, global);
            assert_int_equal((b.first - begin) % 16, 0); /* a lane group is never cut in two */
            assert_in_range((b.count + 15) / 16, groups / (uint32_t)size, groups / (uint32_t)size + (groups % (uint32_t)size != 0));
            if ((b.first - begin) + b.count != global) assert_int_equal(b.count % 16, 0);
            assert_ptr_equal(b.pixels, d->pixels);
            assert_ptr_equal(b.labels, d->labels);
            assert_ptr_equal(b.mean, d->mean);
            assert_int_equal(b.epoch, desc.epoch);
            for (uint32_t i = 0; i < b.count; ++i) {
                assert_true(b.first + i < want_count);
                assert_int_equal(place[b.first + i], UINT32_MAX); /* nobody else has this position */
                place[b.first + i] = b.index[i];
            }
            total += b.count;
        }
        assert_int_equal(step, (want_count + batch - 1) / batch); /* all ranks take the same number of steps */
        assert_int_equal(step, it.steps);
        assert_false(dt_batches_next(&it, &b));
        dt_batches_free(&it);
    }
    assert_int_equal(total, want_count); /* with the check above: every position exactly once */
}

static void batches_exact(void **state) {
    (void)state;
    static uint32_t alone[MOST], shared[MOST];
    const uint32_t sizes[] = { 1, 15, 16, 17, 203, 1000 }, batch_sizes[] = { 1, 5, 16, 17, 33, 100, 128, 250, 2000 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s)
        for (size_t b = 0; b < sizeof batch_sizes / sizeof *batch_sizes; ++b)
            for (int drop = 0; drop < 2; ++drop) {
                const uint32_t n = sizes[s], batch = batch_sizes[b], count = drop ? n / batch * batch : n;
                const dt_dataset d = tiny(n);
                const dt_batches_desc desc = { .global_batch = batch, .seed = 9, .epoch = 2, .shuffle = true, .drop_last = drop };
                run_epoch(&d, desc, 1, alone, count);
                dt_permutation(rows, n, 9, DT_RNG_SHUFFLE, 2);
                if (count) assert_memory_equal(alone, rows, count * sizeof *rows);
                for (int size = 2; size <= 8; ++size) {
                    run_epoch(&d, desc, size, shared, count);
                    assert_memory_equal(alone, shared, sizeof alone); /* the same images in the same lanes for every P */
                }
            }
    assert_int_equal(live_blocks, 0);
}

/* The example in the header's text: 8 groups over 3 ranks; and fewer groups than ranks. */
static void batches_split(void **state) {
    (void)state;
    const dt_dataset d = tiny(128);
    const uint32_t first[3] = { 0, 32, 80 }, count[3] = { 32, 48, 48 }, few[5] = { 0, 0, 16, 0, 4 };
    for (int r = 0; r < 3; ++r) {
        dt_batches it;
        dt_batch b;
        expect_ok(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 128, .rank = r, .size = 3 }));
        assert_true(dt_batches_next(&it, &b));
        assert_int_equal(b.first, first[r]);
        assert_int_equal(b.count, count[r]);
        assert_int_equal(b.index[0], first[r]); /* not shuffled */
        dt_batches_free(&it);
    }
    for (int r = 0; r < 5; ++r) {
        dt_batches it;
        dt_batch b;
        expect_ok(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 20, .rank = r, .size = 5 }));
        assert_true(dt_batches_next(&it, &b));
        assert_int_equal(b.count, few[r]);
        assert_int_equal(b.global_count, 20);
        dt_batches_free(&it);
    }
    static uint32_t place[MOST];
    for (int size = 1; size <= 8; ++size) run_epoch(&d, (dt_batches_desc){ .per_rank_batch = 10, .shuffle = true }, size, place, 128);
}

static void batches_epochs(void **state) {
    (void)state;
    const dt_dataset d = tiny(500);
    dt_batches it;
    dt_batch b;
    expect_ok(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 64, .seed = 4, .shuffle = true }));
    uint32_t first[500];
    memcpy(first, it.order, sizeof first);
    const int before = requests;
    while (dt_batches_next(&it, &b)) { }
    dt_batches_begin(&it, 1);
    assert_memory_not_equal(first, it.order, sizeof first);
    assert_true(dt_batches_next(&it, &b));
    assert_int_equal(b.epoch, 1);
    assert_int_equal(b.first, 0);
    dt_batches_begin(&it, 0); /* a resume finds the epoch as it was */
    assert_memory_equal(first, it.order, sizeof first);
    assert_int_equal(requests, before); /* nothing allocated */
    dt_batches_free(&it);

    /* a subset: only its rows, in its order; shuffled, each once */
    const uint32_t subset[7] = { 499, 3, 77, 4, 5, 0, 250 };
    expect_ok(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 4, .subset = subset, .subset_count = 7 }));
    assert_memory_equal(it.order, subset, sizeof subset);
    assert_int_equal(it.steps, 2);
    dt_batches_free(&it);
    expect_ok(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 4, .subset = subset, .subset_count = 7, .shuffle = true }));
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < 7; ++i) seen[it.order[i]]++;
    for (int i = 0; i < 7; ++i) assert_int_equal(seen[subset[i]], 1);
    assert_memory_not_equal(it.order, subset, sizeof subset);
    dt_batches_free(&it);
    assert_int_equal(live_blocks, 0);
}

static void batches_refused(void **state) {
    (void)state;
    const dt_dataset d = tiny(10), empty = { .count = 0 };
    const uint32_t beyond[2] = { 1, 10 };
    dt_batches it;
    expect_error(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 0 }), DT_EARG, "give one of global_batch (0)");
    expect_error(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 8, .per_rank_batch = 4 }), DT_EARG, "give one of");
    expect_error(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 8, .rank = 2, .size = 2 }), DT_EARG, "rank 2 of 2");
    expect_error(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 8, .rank = -1, .size = 2 }), DT_EARG, "rank -1");
    expect_error(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 8, .size = -3 }), DT_EARG, "of -3 ranks");
    expect_error(dt_batches_init(&it, &d, &(dt_batches_desc){ .per_rank_batch = 1u << 31, .size = 2 }), DT_EARG, "too many");
    expect_error(dt_batches_init(&it, &empty, &(dt_batches_desc){ .global_batch = 8 }), DT_EARG, "the dataset is empty");
    expect_error(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 8, .subset = beyond, .subset_count = 2 }), DT_EARG,
                 "subset[1] is row 10, the dataset has 10");
    expect_error(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 8, .subset = beyond }), DT_EARG, "the subset is empty");
    fail_at = requests + 1;
    expect_error(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 8 }), DT_ENOMEM, "allocate");
    fail_at = 0;
    dt_batches_free(&it);
    assert_int_equal(live_blocks, 0);
}

/* ---- augmentation ---- */

static uint8_t *pillow; /* tests/data/augment.bin, made by tests/make_augment.py */

/* The next number of that file, of `bytes` bytes, lowest first. */
static void take_number(const uint8_t **at, void *number, int bytes) {
    const uint64_t bits = dti_get_le(*at, bytes);
    const uint32_t low = (uint32_t)bits;
    memcpy(number, bytes == 8 ? (const void *)&bits : &low, (size_t)bytes);
    *at += bytes;
}

/* Every byte as Pillow makes it, over shifts, flips, maps, factors and orders. */
static void augment_as_pillow(void **state) {
    (void)state;
    const uint8_t *at = pillow;
    uint32_t cases, head[5];
    take_number(&at, &cases, 4);
    assert_true(cases >= 80);
    for (uint32_t n = 0; n < cases; ++n) {
        dti_alteration a = { .flip = false };
        uint8_t out[1000];
        for (int i = 0; i < 5; ++i) take_number(&at, &head[i], 4);
        take_number(&at, &a.angle, 8), take_number(&at, &a.scale, 8), take_number(&at, &a.shear, 8);
        for (int i = 0; i < 3; ++i) take_number(&at, &a.factor[i], 4);
        take_number(&at, &a.right, 4), take_number(&at, &a.down, 4);
        a.flip = head[3] != 0, a.order = (int)head[4];
        const size_t bytes = (size_t)head[0] * head[1] * head[2];
        dti_alter(&a, (int)head[0], (int)head[1], (int)head[2], at, out);
        for (size_t i = 0; i < bytes; ++i)
            if (out[i] != at[bytes + i])
                fail_msg("case %u, %ux%ux%u, byte %zu: %u, Pillow has %u", (unsigned)n, (unsigned)head[0], (unsigned)head[1], (unsigned)head[2], i,
                         out[i], at[bytes + i]);
        at += 2 * bytes;
    }
}

/* What is drawn lies within the bounds, evenly, and belongs to the image, the epoch and the seed. */
static void augment_draws(void **state) {
    (void)state;
    const dt_augment d = { .seed = 3, .flip = 0.25f, .rotate = 10.0f, .scale_low = 0.8f, .scale_high = 1.2f, .shear = 5.0f, .brightness = 0.2f,
                           .contrast = 0.5f, .shift = 2 };
    enum { N = 20000 };
    double sum[6] = { 0 }, most[3] = { 0 };
    int orders[6] = { 0 }, moved[5][5] = { { 0 } };
    for (uint32_t n = 0; n < N; ++n) {
        const dti_alteration a = dti_draw_alteration(&d, 1, n);
        const double x[6] = { a.flip, a.angle, a.scale, a.shear, (double)a.factor[0], (double)a.factor[1] };
        for (int k = 0; k < 6; ++k) sum[k] += x[k] / N;
        most[0] = fmax(most[0], fabs(a.angle)), most[1] = fmax(most[1], fabs(a.shear)), most[2] = fmax(most[2], fabs(a.scale - 1.0));
        assert_true(a.factor[2] == 1.0f && fabs((double)a.factor[0] - 1.0) <= 0.2001 && fabs((double)a.factor[1] - 1.0) <= 0.5001);
        ++orders[a.order];
        assert_true(abs(a.right) <= 2 && abs(a.down) <= 2);
        ++moved[a.down + 2][a.right + 2];
    }
    assert_true(fabs(sum[0] - 0.25) < 0.015 && fabs(sum[1]) < 0.2 && fabs(sum[2] - 1.0) < 0.005 && fabs(sum[3]) < 0.1);
    assert_true(fabs(sum[4] - 1.0) < 0.005 && fabs(sum[5] - 1.0) < 0.01);
    assert_true(most[0] > 9.9 && most[0] <= 10.0 && most[1] > 4.9 && most[1] <= 5.0 && most[2] > 0.19 && most[2] <= 0.2001);
    for (int k = 0; k < 6; ++k) assert_in_range(orders[k], N / 6 - 300, N / 6 + 300);
    for (int k = 0; k < 25; ++k) assert_in_range(moved[k / 5][k % 5], N / 25 - 150, N / 25 + 150);
    const dti_alteration a = dti_draw_alteration(&d, 1, 5), same = dti_draw_alteration(&d, 1, 5), epoch = dti_draw_alteration(&d, 2, 5);
    dt_augment reseeded = d;
    reseeded.seed = 4;
    const dti_alteration seed = dti_draw_alteration(&reseeded, 1, 5);
    assert_true(a.angle == same.angle && a.angle != epoch.angle && a.angle != seed.angle);
}

/* The same lanes for every number of ranks; and those of the images altered one by one, packed as they are. */
static void augment_batches(void **state) {
    (void)state;
    enum { N = 70, C = 3, SIDE = 8, IMAGE = C * SIDE * SIDE, GROUPS = 5 };
    static uint8_t px[N * IMAGE], altered[N * IMAGE], lb[N];
    static float one[GROUPS * IMAGE * DT_LANES], mine[IMAGE * DT_LANES], plain[IMAGE * DT_LANES];
    float mean[C] = { 0.5f, 0.4f, 0.3f }, std[C] = { 0.2f, 0.25f, 0.3f };
    const dt_augment augment = { .seed = 11, .flip = 0.5f, .rotate = 10.0f, .scale_low = 0.8f, .scale_high = 1.2f, .shear = 10.0f, .brightness = 0.2f,
                                 .contrast = 0.2f, .saturation = 0.2f, .shift = 1 };
    for (size_t i = 0; i < sizeof px; ++i) px[i] = (uint8_t)(i * i % 251);
    const dt_dataset d = { .count = N, .channels = C, .height = SIDE, .width = SIDE, .classes = 10, .pixels = px, .labels = lb, .mean = mean, .std = std };
    for (uint32_t n = 0; n < N; ++n) {
        const dti_alteration a = dti_draw_alteration(&augment, 4, n);
        dti_alter(&a, C, SIDE, SIDE, px + n * IMAGE, altered + n * IMAGE);
    }
    assert_memory_not_equal(px, altered, sizeof px);
    for (int size = 1; size <= 5; ++size)
        for (int rank = 0; rank < size; ++rank) {
            dt_batches it;
            dt_batch b;
            expect_ok(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = N, .rank = rank, .size = size, .seed = 2, .epoch = 4, .shuffle = true,
                                                                   .augment = &augment }));
            assert_true(dt_batches_next(&it, &b));
            for (int g = 0; g < (int)(b.count + 15) / 16; ++g) {
                float *kept = one + (b.first / 16 + (uint32_t)g) * IMAGE * DT_LANES;
                dti_batch_lanes(&b, C, SIDE, SIDE, g, size == 1 ? kept : mine);
                dt_batch unaltered = b;
                unaltered.pixels = altered;
                unaltered.augment = NULL;
                dti_batch_lanes(&unaltered, C, SIDE, SIDE, g, plain);
                assert_memory_equal(kept, plain, sizeof plain);
                if (size > 1) assert_memory_equal(kept, mine, sizeof mine);
            }
            dt_batches_free(&it);
        }
    fail_at = requests + 2;
    dt_batches it;
    expect_error(dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 8, .augment = &augment }), DT_ENOMEM, "allocate");
    fail_at = 0;
    assert_int_equal(live_blocks, 0);
}

static void augment_refused(void **state) {
    (void)state;
    static uint8_t px[16], lb[4];
    const dt_dataset d = { .count = 4, .channels = 2, .height = 1, .width = 2, .pixels = px, .labels = lb };
    dt_batches it;
    const struct { dt_augment a; dt_err code; const char *says; } cases[] = {
        { { .flip = 1.5f }, DT_EARG, "augment: flip is 1.5, outside of 0 to 1" },
        { { .flip = NAN }, DT_EARG, "augment: flip is nan" },
        { { .rotate = -1.0f }, DT_EARG, "augment: rotate is -1, outside of 0 to 180" },
        { { .shear = 50.0f }, DT_EARG, "augment: shear is 50, outside of 0 to 45" },
        { { .brightness = 2.0f }, DT_EARG, "augment: brightness is 2" },
        { { .scale_low = 0.5f }, DT_EARG, "augment: scale from 0.5 to 0" },
        { { .scale_high = 1.5f }, DT_EARG, "augment: scale from 0 to 1.5; needs 0.25 <= low <= high <= 4" },
        { { .scale_low = NAN, .scale_high = 1.0f }, DT_EARG, "augment: scale from nan to 1" },
        { { .contrast = 0.1f }, DT_ESHAPE, "augment: contrast and saturation need grey or three colours, not 2 channels" },
        { { .shift = -1 }, DT_EARG, "augment: shift is -1, outside of 0 to 2048" },
        { { .brightness = 1.0f, .flip = 1.0f, .shift = 3 }, DT_OK, "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const dt_err got = dt_batches_init(&it, &d, &(dt_batches_desc){ .global_batch = 4, .augment = &cases[i].a });
        if (cases[i].code == DT_OK) expect_ok(got);
        else expect_error(got, cases[i].code, cases[i].says);
        dt_batches_free(&it);
    }
    assert_int_equal(live_blocks, 0);
}

static int fresh_count(void **state) { /* a test that failed half-way must not fail the next ones */
    (void)state;
    live_blocks = fail_at = 0;
    return 0;
}
static int enter_home(void **state) {
    (void)state;
    make_good();
    FILE *f = fopen("tests/data/augment.bin", "rb");
    if (!f || !(pillow = malloc(1 << 20)) || fread(pillow, 1, 1 << 20, f) < 1000 || fclose(f) != 0) return 1;
    return !mkdtemp(home) || chdir(home) != 0;
}
static int leave_home(void **state) {
    (void)state;
    remove("i");
    remove("l");
    free(pillow);
    return chdir("/") != 0 || rmdir(home) != 0; /* fails if a test left a file behind */
}

#define TEST(name) cmocka_unit_test_setup(name, fresh_count)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(idx_whole), TEST(idx_hostile), TEST(idx_fuzz), TEST(find_by_name), TEST(find_broken), TEST(find_dotted), TEST(find_what_the_environment_names),
        TEST(cifar_whole), TEST(cifar_hostile), TEST(find_cifar10), TEST(find_synthetic), TEST(synthetic_digits), TEST(view), TEST(arrays), TEST(arrays_refused), TEST(partition), TEST(sampler_order),
        TEST(sampler_shuffled), TEST(batches_exact), TEST(batches_split), TEST(batches_epochs), TEST(batches_refused),
        TEST(augment_as_pillow), TEST(augment_draws), TEST(augment_batches), TEST(augment_refused),
    };
    return cmocka_run_group_tests_name("data", tests, enter_home, leave_home);
}
