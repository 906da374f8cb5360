// A trained net at work: reads the parameters that chapter 12 saved, and classifies the test
// images, or shows one.
//
// Run     make ch12 infer && ./ch12 --epochs 1 --save net.safetensors
//         ./infer --load net.safetensors                    all test images: how many are right, and what is taken for what
//         ./infer --load net.safetensors --image 8          one of them, with the probabilities of the ten labels
//         ./infer --load net.safetensors --file digit.png   an image of your own: a PNG of 28 x 28 pixels, white on black,
//                                                           or a file of IDX images, which needs no labels

#include "../chapters/chapter.h"

#include <sys/stat.h>

#define STBI_ONLY_PNG
#define STB_IMAGE_IMPLEMENTATION
#if __has_include(<stb/stb_image.h>)
#include <stb/stb_image.h>
#else
#include "stb_image.h"
#endif

enum { BATCH = 128, MOST_CLASSES = 10, SHOWN = 8 };

// Dropout is off: the same image gets the same answer every time.
static void classify(dt_comm *comm, dt_net *net, const dt_batch *batch) {
    check(comm, dt_net_load(net, batch));
    check(comm, dt_forward(net));
}

static int most_probable(const dt_net *net, int i, float *logp) {
    int best = 0;
    dt_net_log_probabilities(net, i, logp);
    for (int k = 1; k < dt_net_classes(net); ++k)
        if (logp[k] > logp[best]) best = k;
    return best;
}

// The image beside the ten probabilities, a bar of up to 30 characters each.
static void show_image(dt_comm *comm, dt_net *net, const dt_dataset *data, uint32_t n) {
    float logp[MOST_CLASSES];
    const dt_batch one = batch_of(data, &n, 0, 1);
    classify(comm, net, &one);
    const int best = most_probable(net, 0, logp);
    const uint8_t *pixel = data->pixels + (size_t)n * 28 * 28;
    for (int y = 0; y < 28; ++y) {
        for (int x = 0; x < 28; ++x) putchar(" .:-=+*#%@"[*pixel++ * 10 / 256]);
        const int k = y - 9;
        if (k < 0 || k >= data->classes) { putchar('\n'); continue; }
        const double p = exp((double)logp[k]);
        printf("   %d  %7.3f %%  %.*s\n", k, 100.0 * p, (int)(30.0 * p + 0.5),
               "##############################");
    }
    printf("image %u is a %u; the net says %d: %s\n", n, data->labels[n], best,
           best == data->labels[n] ? "right" : "wrong");
}

static void show_all(dt_comm *comm, dt_net *net, const dt_dataset *data) {
    uint32_t table[MOST_CLASSES][MOST_CLASSES] = { { 0 } }, right = 0, shown = 0;
    dt_batches it;
    float logp[MOST_CLASSES];
    char wrong[400] = "";
    // not shuffled: in the file's order
    check(comm, dt_batches_init(&it, data, &(dt_batches_desc){ .global_batch = BATCH }));
    const double start = dt_now();
    for (dt_batch batch; dt_batches_next(&it, &batch);) {
        classify(comm, net, &batch);
        for (uint32_t i = 0; i < batch.count; ++i) {
            const int said = most_probable(net, (int)i, logp), label = data->labels[batch.index[i]];
            ++table[label][said];
            right += said == label;
            const size_t length = strlen(wrong);
            if (said != label && shown++ < SHOWN)
                snprintf(wrong + length, sizeof wrong - length, "%s%u (a %d, taken for %d)",
                         length ? ", " : "", batch.index[i], label, said);
        }
    }
    const double seconds = dt_now() - start;
    dt_batches_free(&it);
    printf("\n%u of %u images are right: %.2f %%, %.0f images/s\n\nrows: the label; columns: what "
           "the net says\n     ",
           right, data->count, 100.0 * right / data->count, data->count / seconds);
    for (int k = 0; k < data->classes; ++k) printf("%6d", k);
    for (int label = 0; label < data->classes; ++label) {
        printf("\n%5d", label);
        for (int k = 0; k < data->classes; ++k) printf("%6u", table[label][k]);
    }
    printf("\n");
    if (*wrong) printf("\nthe first that are wrong: %s\n", wrong);
}

// ---- Images of one's own: bytes of 28 x 28 pixels each.

static uint32_t big_endian(const unsigned char *b) {
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

// Takes as much memory as the file has pixels, whatever its header says.
static dt_err read_idx(FILE *f, uint64_t size, const char *path, uint8_t **pixels,
                       uint32_t *count) {
    enum { MOST = 1 << 20 };
    unsigned char head[16];
    if (fread(head, 1, 16, f) != 16 || big_endian(head) != 0x803)
        return dt_fail(DT_EDATA, "%s: is neither a PNG nor a file of IDX images", path);
    *count = big_endian(head + 4);
    if (big_endian(head + 8) != 28 || big_endian(head + 12) != 28 || *count < 1 || *count > MOST)
        return dt_fail(DT_ESHAPE,
                       "%s: %u images of %u x %u pixels; the net takes 28 x 28, and this program 1 "
                       "to %d of them",
                       path, *count, big_endian(head + 12), big_endian(head + 8), MOST);
    if (size - 16 != (uint64_t)*count * 784)
        return dt_fail(DT_EDATA, "%s: does not hold the %u images that it says", path, *count);
    *pixels = memory((size_t)*count * 784);
    if (fread(*pixels, 784, *count, f) == *count) return DT_OK;
    return dt_fail(DT_EIO, "%s: could not be read to its end", path);
}

// What is packed in a PNG may be a thousand times as large as the file: with so small a file, it is
// small, too.
static dt_err read_png(uint64_t size, const char *path, uint8_t **pixels) {
    enum { MOST = 1 << 16 };
    int width = 0, height = 0, channels = 0;
    if (size > MOST)
        return dt_fail(DT_EDATA, "%s: %llu bytes; a PNG of 28 x 28 pixels may have %d", path,
                       (unsigned long long)size, MOST);
    if (!stbi_info(path, &width, &height, &channels))
        return dt_fail(DT_EDATA, "%s: %s", path, stbi_failure_reason());
    if (width != 28 || height != 28)
        return dt_fail(DT_ESHAPE, "%s: %d x %d pixels; the net takes 28 x 28", path, width, height);
    stbi_uc *read = stbi_load(path, &width, &height, &channels, 1); // grey
    if (!read) return dt_fail(DT_EDATA, "%s: %s", path, stbi_failure_reason());
    *pixels = memory(784);
    memcpy(*pixels, read, 784);
    stbi_image_free(read);
    return DT_OK;
}

static dt_err read_images(const char *path, uint8_t **pixels, uint32_t *count) {
    char first[4] = "";
    struct stat s = { 0 };
    // to open a pipe would wait for its writer
    if (stat(path, &s) == 0 && !S_ISREG(s.st_mode))
        return dt_fail(DT_EIO, "%s is not a plain file", path);
    FILE *f = fopen(path, "rb");
    if (!f) return dt_fail(DT_EIO, "cannot open %s", path);
    const bool png = fread(first, 1, 4, f) == 4 && memcmp(first, "\x89PNG", 4) == 0;
    const uint64_t size = (uint64_t)s.st_size;
    rewind(f);
    *count = 1;
    const dt_err error =
        png ? read_png(size, path, pixels) : read_idx(f, size, path, pixels, count);
    fclose(f);
    return error;
}

// A line an image: what the net says, and the probability of each label. like: the data that the
// net was trained on, whose mean and deviation it expects.
static void show_file(dt_comm *comm, dt_net *net, const dt_dataset *like, const char *path) {
    dt_dataset mine = { .name = "images of one's own",
                        .channels = 1,
                        .height = 28,
                        .width = 28,
                        .classes = like->classes,
                        .mean = like->mean,
                        .std = like->std };
    check(comm, read_images(path, &mine.pixels, &mine.count));
    float *p = memory((size_t)mine.count * (size_t)like->classes * sizeof *p);
    check(comm, dt_predict(net, &mine, 0, mine.count, p));
    printf("image  is   ");
    for (int k = 0; k < like->classes; ++k) printf("  P(%d)", k);
    for (uint32_t i = 0; i < mine.count; ++i) {
        const float *row = p + i * (size_t)like->classes;
        int best = 0;
        for (int k = 1; k < like->classes; ++k) best = row[k] > row[best] ? k : best;
        printf("\n%5u  %2d   ", i, best);
        for (int k = 0; k < like->classes; ++k) printf(" %5.3f", (double)row[k]);
    }
    printf("\n");
    free(p);
    free(mine.pixels);
}

int main(int argc, char **argv) {
    const char *file = "net.safetensors", *which = "auto", *own = NULL;
    uint64_t image = UINT64_MAX;
    const option_desc options[] = {
        { "load", 's', &file,
          "FILE   parameters that ./ch12 --save FILE wrote; default net.safetensors" },
        DATA_OPTION(&which),
        { "image", 'u', &image, "N     show test image N, from 0; default: classify them all" },
        { "file", 's', &own,
          "FILE   classify a PNG of 28 x 28 pixels, or a file of IDX images, instead" },
    };
    dt_comm *comm = begin_program(argc, argv, "Classifies test images with a saved net.", options,
                                  sizeof options);
    dt_dataset test;
    load_data(comm, which, "infer", NULL, &test);
    if (image != UINT64_MAX && image >= test.count)
        usage_error(comm, "infer", "--image: there are not so many test images");
    dt_net *net = mnist_net(test.classes);
    check(comm, dt_net_build(net, &(dt_build_desc){ .batch = BATCH }));
    check(comm, dt_load(net, file));
    dt_net_training(net, false);
    printf("data     %s, %u test images: %s\n", test.name, test.count, test.source);
    if (own) show_file(comm, net, &test, own);
    else if (image != UINT64_MAX) show_image(comm, net, &test, (uint32_t)image);
    else show_all(comm, net, &test);
    dt_net_free(net);
    return end_program(comm, NULL, &test);
}
