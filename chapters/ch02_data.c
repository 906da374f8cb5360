// Chapter 2. Images, shares and batches                   uses [S2] [S4.2] [S4.3] [S4.4] [S4.5]
//
// You will learn   to read an IDX file byte by byte; to deal images out to ranks so that nothing
//                  is left to luck
// New since ch01   about 200 lines
// Run              make ch02 && ./ch02
// Check            ./ch02 --data synthetic --images 6007 --figures build/check
//
//| header   00 00 08 03   00 00 27 10   00 00 00 1c   00 00 00 1c
//| meaning  magic 0x00000803, 10000 images of 28 x 28
//| read by hand: all 7840000 pixels and 10000 labels are those of dt_idx_load
//| one permutation of 6007 images, made by hand, is dt_permutation's
//| fractions .7 .2 .1   4205 + 1201 + 601 images
//| 5 equal shares       1201 + 1201 + 1202 + 1201 + 1202 images
//~ each rank shuffles with a seed of its own: <num> % of the images are seen, <num> % never
//| rank 3 takes   7   9   3 *
//| the sampler by hand is dt_sampler in 1800 of 1800 cases
//| P = 5   16 + 32 + 16 + 32 + 32     16 + 32 + 16 + 32 + 23     6007 images, each once

#include "chapter.h"
#include "ch02_files.h"

// ## 2.1 The file
//
// **MNIST** is 70000 small grey pictures of handwritten digits: 60000 to train on, 10000 for the
// test. (`make data` fetches it; without it the programs draw digits of their own.) What a picture
// shows is its **label**; there are ten labels, so ten **classes**. It comes as four IDX files,
// images and labels for each of the two sets. A header of 32-bit numbers, then bytes:
//
//     images   0x00000803   N   rows   columns   N*rows*columns pixels, 0 = paper, 255 = ink
//     labels   0x00000801   N                    N labels, 0..9
//
// The numbers are *big-endian*: the most significant byte first, the other way around than in the
// memory of nearly every machine today. So we do not read an int from the file, we put one together
// from four bytes; that is right everywhere. A header is a promise made by somebody else, and the
// only thing that can be held against it is the length of the file. We do that before we ask for
// memory.

// [region: idx]
static uint32_t big_endian(const uint8_t b[4]) {
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | (uint32_t)b[3];
}

// The bytes behind the header, in memory of their own; sizes: N, rows, columns, or N alone; header:
// up to 16 bytes.
static uint8_t *read_idx(const char *path, uint32_t wanted_magic, uint32_t *sizes,
                         uint8_t *header) {
    FILE *file = fopen(path, "rb");
    const size_t dimensions = wanted_magic & 255, length = 4 + 4 * dimensions;
    size_t bytes = 1;
    if (!file || fread(header, 1, length, file) != length || big_endian(header) != wanted_magic) {
        fprintf(stderr, "%s: no IDX file of magic 0x%08x\n", path, wanted_magic);
        exit(1);
    }
    for (size_t i = 0; i < dimensions; ++i) bytes *= sizes[i] = big_endian(header + 4 + 4 * i);
    fseek(file, 0, SEEK_END);
    if ((size_t)ftell(file) != length + bytes) {
        fprintf(stderr, "%s: the header promises %zu bytes, the file has %ld\n", path,
                length + bytes, ftell(file));
        exit(1);
    }
    uint8_t *data = memory(bytes);
    fseek(file, (long)length, SEEK_SET);
    if (fread(data, 1, bytes, file) != bytes) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(1);
    }
    fclose(file);
    return data;
}
// [end]

// ## 2.2 One image
//
// Row by row, the columns fastest: chapter 1's rule. Ten characters of growing blackness make a
// picture of it.

static void print_image(const uint8_t *pixels, uint8_t label) {
    printf("a %u:\n", label);
    for (int y = 2; y < 26; ++y) {
        printf("   ");
        for (int x = 0; x < 28; ++x) printf("%c", " .:-=+*#%@"[pixels[28 * y + x] * 10 / 256]);
        printf("\n");
    }
}

static void show_file(const dt_dataset *test) {
    // of synthetic digits, which are drawn, written for this purpose
    const idx_files files = test_files(test);
    uint32_t sizes[3], n;
    uint8_t header[16], head[16];
    uint8_t *x = read_idx(files.images, 0x803, sizes, header),
            *t = read_idx(files.labels, 0x801, &n, head);
    printf("header  ");
    for (int i = 0; i < 16; ++i) printf("%s %02x", i && i % 4 == 0 ? "  " : "", header[i]);
    printf("\nmeaning  magic 0x%08x, %u images of %u x %u\n", big_endian(header), sizes[0],
           sizes[1], sizes[2]);
    print_image(x, t[0]);

    dt_dataset theirs;
    check(NULL, dt_idx_load(&theirs, files.images, files.labels, 10));
    const size_t pixels = (size_t)sizes[0] * sizes[1] * sizes[2];
    const bool same = n == sizes[0] && theirs.count == n && memcmp(x, theirs.pixels, pixels) == 0 &&
                      memcmp(t, theirs.labels, n) == 0;
    if (same)
        printf("read by hand: all %zu pixels and %u labels are those of dt_idx_load\n", pixels, n);
    expect(same, "read_idx and dt_idx_load disagree");
    forget_test_files(&files);
    dt_dataset_free(&theirs);
    free(x);
    free(t);
}

// ## 2.3 What the net sees
//
// Pixels of 0..255 are mostly paper. The initial weights of 1.5 are made for inputs around zero of
// variance 1, so every pixel becomes (pixel/255 - mean) / std, with mean and standard deviation
// measured over the training images. This is to **normalise** them. (Over the training images
// alone, as nothing may be chosen by looking at the test set.)

static void show_normalisation(const dt_dataset *train) {
    const size_t n = (size_t)train->count * 784;
    double sum = 0.0, squares = 0.0;
    for (size_t i = 0; i < n; ++i) {
        const double p = train->pixels[i] / 255.0;
        sum += p;
        squares += p * p;
    }
    const double mean = sum / (double)n, std = sqrt(squares / (double)n - mean * mean);
    printf("\nmean %.4f, standard deviation %.4f: paper becomes %.4f, ink %.4f\n", mean, std,
           -mean / std, (1.0 - mean) / std);
    expect(fabs(mean - (double)train->mean[0]) < 1e-4 && fabs(std - (double)train->std[0]) < 1e-4,
           "mean or std differ from the dataset's");
}

// ## 2.4 A fair shuffle
//
// To deal images out we need a permutation of 0..n-1, each of the n! equally likely (Fisher and
// Yates 1938): walk from the end, and let each place change with one drawn from the places up to
// it, itself included. That is n choices for the last place, n-1 for the one before it, and so on:
// n! ways, and each leads to another permutation.
//
// "Drawn from i places" is where programs cheat: `random % i` prefers small numbers unless i
// divides 2^32. Lemire (2019) takes the upper half of random * i, which is a number below i. Of the
// 2^32 random numbers, 2^32 mod i are too many to be shared out evenly over i places. He shows that
// it is enough to draw again if the lower half of the product is below 2^32 mod i: then exactly as
// many numbers are left for each place.

// [region: permutation]
static uint32_t drawn_below(uint32_t i, uint64_t *used, uint64_t seed, uint32_t purpose,
                            uint32_t epoch) {
    for (;;) {
        // the n-th number of this stream: four come from one counter
        const uint64_t n = (*used)++;
        const uint32_t bits =
            dt_philox(seed, purpose, epoch, (uint32_t)(n >> 34), (uint32_t)(n >> 2)).v[n % 4];
        const uint64_t product = (uint64_t)bits * i;
        if ((uint32_t)product >= (uint32_t)(0x100000000u % i)) return (uint32_t)(product >> 32);
    }
}

static void permutation(uint32_t *out, uint32_t n, uint64_t seed, uint32_t purpose,
                        uint32_t epoch) {
    uint64_t used = 0;
    for (uint32_t i = 0; i < n; ++i) out[i] = i;
    for (uint32_t i = n; i > 1; --i) {
        const uint32_t j = drawn_below(i, &used, seed, purpose, epoch), swap = out[i - 1];
        out[i - 1] = out[j];
        out[j] = swap;
    }
}
// [end]

// ## 2.5 The partition
//
// Cut that permutation into consecutive pieces: every image belongs to one share, and a share is a
// random sample. The lab report's (1.3) partitioner cuts at .7, .2 and .1 unless told otherwise;
// its runs used equal shares. We round the *cut points* and not the sizes: then the sizes add up to
// n whatever the fractions are.
//
// The table asks whether a share looks like the whole. Each digit is about a tenth of all images.
// Chance lets its part of a share of 12000 stray from that by a quarter of a point or so, and the
// poorest and the richest of five shares should lie about that far from the middle.

static void cut(uint32_t *start, const float *fractions, uint32_t k, uint32_t n) {
    double sum = 0.0, before = 0.0;
    for (uint32_t i = 0; i < k; ++i) sum += (double)fractions[i];
    for (uint32_t i = 0; i <= k; ++i) {
        start[i] = (uint32_t)(before / sum * n + 0.5);
        if (i < k) before += (double)fractions[i];
    }
}

static void show_partition(const dt_dataset *train, uint64_t seed) {
    const uint32_t n = train->count;
    uint32_t *mine = memory(n * sizeof *mine), *theirs = memory(n * sizeof *theirs), start[6],
             their_start[6];
    permutation(mine, n, seed, DT_RNG_PARTITION, 0);
    dt_permutation(theirs, n, seed, DT_RNG_PARTITION, 0);
    if (memcmp(mine, theirs, n * sizeof *mine) == 0)
        printf("\none permutation of %u images, made by hand, is dt_permutation's\n", n);
    else expect(false, "the permutation differs from dt_permutation's");

    const float report[3] = { 0.7f, 0.2f, 0.1f };
    cut(start, report, 3, n);
    check(NULL, dt_partition(theirs, their_start, report, 3, n, seed));
    printf("fractions .7 .2 .1   %u + %u + %u images\n", start[1], start[2] - start[1],
           n - start[2]);
    expect(memcmp(start, their_start, 4 * sizeof *start) == 0 &&
               memcmp(mine, theirs, n * sizeof *mine) == 0,
           "dt_partition cuts elsewhere");
    // equal: whole numbers, no rounding to discuss
    for (uint32_t i = 0; i <= 5; ++i) start[i] = (uint32_t)((uint64_t)i * n / 5);
    check(NULL, dt_partition(theirs, their_start, NULL, 5, n, seed));
    printf("5 equal shares       %u", start[1]);
    for (uint32_t i = 1; i < 5; ++i) printf(" + %u", start[i + 1] - start[i]);
    printf(" images\n");
    expect(memcmp(start, their_start, sizeof start) == 0, "dt_partition makes other equal shares");

    // What is in them? Each label's smallest and largest part of a share, over the five shares.
    printf("label, its part of all images, and of the poorest and the richest of the five shares, "
           "in %%\n");
    for (int label = 0; label < train->classes; ++label) {
        double low = 1.0, high = 0.0, all = 0.0;
        for (int s = 0; s < 5; ++s) {
            double count = 0.0;
            for (uint32_t i = start[s]; i < start[s + 1]; ++i)
                count += train->labels[mine[i]] == label;
            all += count / n;
            low = fmin(low, count / (start[s + 1] - start[s]));
            high = fmax(high, count / (start[s + 1] - start[s]));
        }
        printf("   %d   %5.2f   %5.2f .. %5.2f\n", label, 100.0 * all, 100.0 * low, 100.0 * high);
    }
    free(mine);
    free(theirs);
}

// ## 2.6 Why a rank's share does not depend on luck
//
// No message was needed for this: the permutation is a function of (seed, purpose, epoch), so every
// rank computes the same one and takes its own piece. Programs that let each rank shuffle with its
// own seed, or with the time of day, draw P independent fifths instead. An image escapes all of
// them with probability (1 - 1/P)^P: a third of the data for P = 5.

static void show_luck(uint32_t n, uint64_t seed) {
    uint32_t *order = memory(n * sizeof *order), seen = 0;
    uint8_t *used = memory(n);
    for (uint64_t rank = 0; rank < 5; ++rank) {
        permutation(order, n, seed + 1 + rank, DT_RNG_PARTITION, 0);
        for (uint32_t i = 0; i < n / 5; ++i) used[order[i]] = 1;
    }
    for (uint32_t i = 0; i < n; ++i) seen += used[i];
    printf("each rank shuffles with a seed of its own: %.1f %% of the images are seen, %.1f %% "
           "never\n",
           100.0 * seen / n, 100.0 - 100.0 * seen / n);
    free(order);
    free(used);
}

// ## 2.7 The sampler that pads
//
// PyTorch, the library in which most nets are trained, has a DistributedSampler. It deals the
// epoch's permutation out like cards: rank r takes positions r, r+P, r+2P, … When P does not divide
// n it begins the permutation again until all have the same number (or drops the tail, if told so).
// The images at the head of the permutation then count twice in that epoch, marked * here; the part
// of right answers in such a share is not the part of right answers in the test set. It is a small
// error, and it changes with P.

// [region: sampler]
static uint32_t sampler(uint32_t *out, const uint32_t *order, uint32_t n, uint32_t rank,
                        uint32_t ranks, bool drop_last) {
    const uint32_t each = drop_last ? n / ranks : (n + ranks - 1) / ranks;
    for (uint32_t i = 0; i < each; ++i) out[i] = order[(i * ranks + rank) % n];
    return each;
}
// [end]

static void show_sampler(uint64_t seed) {
    uint32_t order[64], mine[64];
    int same = 0, cases = 0;
    permutation(order, 10, seed, DT_RNG_SHUFFLE, 0);
    printf("\n10 images dealt to 4 ranks in epoch 0\n");
    for (uint32_t rank = 0; rank < 4; ++rank) {
        const uint32_t each = sampler(mine, order, 10, rank, 4, false);
        printf("rank %u takes", rank);
        for (uint32_t i = 0; i < each; ++i)
            printf(" %3u%s", mine[i], i * 4 + rank >= 10 ? " *" : "");
        printf("\n");
    }
    for (uint32_t n = 1; n <= 60; ++n)
        for (int ranks = 1; ranks <= 5; ++ranks)
            for (int rank = 0; rank < ranks; ++rank)
                for (int drop = 0; drop < 2; ++drop) {
                    dt_sampler s;
                    check(NULL, dt_sampler_init(&s, &(dt_sampler_desc){ .count = n,
                                                                        .rank = rank,
                                                                        .ranks = ranks,
                                                                        .shuffle = true,
                                                                        .drop_last = drop == 1,
                                                                        .seed = seed }));
                    dt_sampler_set_epoch(&s, 7);
                    permutation(order, n, seed, DT_RNG_SHUFFLE, 7);
                    const uint32_t each =
                        sampler(mine, order, n, (uint32_t)rank, (uint32_t)ranks, drop == 1);
                    same += each == s.per_rank &&
                            (each == 0 || memcmp(mine, s.index, each * sizeof *mine) == 0);
                    ++cases;
                    dt_sampler_free(&s);
                }
    printf("the sampler by hand is dt_sampler in %d of %d cases\n", same, cases);
    expect(same == cases, "sampler and dt_sampler disagree");
}

// ## 2.8 Exact global batches
//
// We train with another rule, because we want the answer not to depend on P at all. The epoch's
// permutation is cut into *global* batches; a global batch into groups of 16 consecutive images
// (16, as the library computes sixteen images at once: chapter 4); and rank r takes groups `r*G/P`
// to `(r+1)*G/P - 1` of the G groups. Nobody pads, nobody drops; a rank may get less than its
// neighbour, or nothing. And the group that an image is in, its place in it, and the global batch's
// gradient are the same for every P; chapter 8 sees to the last bit of it.

// [region: batches]
static uint32_t my_part(uint32_t *first, uint32_t global, uint32_t rank, uint32_t ranks) {
    const uint32_t groups = (global + 15) / 16, from = rank * groups / ranks * 16,
                   to = (rank + 1) * groups / ranks * 16;
    *first = from;
    return (to < global ? to : global) - from;
}
// [end]

static void show_batches(const dt_dataset *train, uint32_t batch, uint64_t seed) {
    const uint32_t n = train->count, tail = n % batch ? n % batch : batch;
    uint32_t *order = memory(n * sizeof *order);
    uint8_t *used = memory(n);
    permutation(order, n, seed, DT_RNG_SHUFFLE, 3);
    printf("\nglobal batch %u: images of each rank in a full step, and in the epoch's last\n",
           batch);
    for (uint32_t ranks = 1; ranks <= 5; ++ranks) {
        uint32_t first, total = 0, wrong = 0;
        memset(used, 0, n);
        printf("P = %u   ", ranks);
        for (uint32_t rank = 0; rank < ranks; ++rank)
            printf("%s%u", rank ? " + " : "", my_part(&first, batch, rank, ranks));
        printf("     ");
        for (uint32_t rank = 0; rank < ranks; ++rank)
            printf("%s%u", rank ? " + " : "", my_part(&first, tail, rank, ranks));
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            dt_batches it;
            dt_batch b;
            uint32_t at = 0;
            check(NULL, dt_batches_init(&it, train,
                                        &(dt_batches_desc){ .global_batch = batch,
                                                            .rank = (int)rank,
                                                            .size = (int)ranks,
                                                            .seed = seed,
                                                            .shuffle = true }));
            for (dt_batches_begin(&it, 3); dt_batches_next(&it, &b); at += b.global_count) {
                const uint32_t mine = my_part(&first, b.global_count, rank, ranks);
                wrong += b.count != mine ||
                         memcmp(b.index, order + at + first, mine * sizeof *order) != 0;
                for (uint32_t i = 0; i < b.count; ++i) wrong += used[b.index[i]]++ != 0;
                total += b.count;
            }
            dt_batches_free(&it);
        }
        printf("     %u images%s\n", total, total == n && wrong == 0 ? ", each once" : "");
        expect(total == n && wrong == 0,
               "dt_batches deals otherwise, or an image is not used exactly once");
    }
    free(order);
    free(used);
}

// ## 2.9 A contact sheet
//
// Ten of each digit. Look at your data before you train on it: some of these will be gotten wrong
// by any net, and some you will not know yourself.
//
// Picture: ch02_digits

static void draw_sheet(const dt_dataset *train, const char *folder) {
    uint8_t *sheet = memory(100 * 784);
    char numbers[100][16] = { "" };
    const char *captions[100];
    int placed[10] = { 0 };
    double ink = 0.0;
    for (uint32_t i = 0; i < train->count; ++i) {
        const uint8_t label = train->labels[i];
        if (label < 10 && placed[label] < 10) {
            const int at = label * 10 + placed[label]++;
            memcpy(sheet + at * 784, train->pixels + (size_t)i * 784, 784);
            snprintf(numbers[at], sizeof numbers[at], "no %u", i);
        }
        for (size_t p = 0; p < 784; ++p) ink += train->pixels[(size_t)i * 784 + p] > 127;
    }
    for (int i = 0; i < 100; ++i) captions[i] = numbers[i];
    char title[160];
    snprintf(title, sizeof title, "One hundred of %u images of %s: %.0f %% of the pixels are ink",
             train->count, train->name, 100.0 * ink / (double)train->count / 784.0);
    dt_chart *c = dt_chart_new(
        &(dt_chart_desc){ .title = title,
                          .subtitle = "the first ten images of each label, 0 to 9 from top to "
                                      "bottom, with their numbers; ink: above half white",
                          .caption = train->name,
                          .machine = true });
    dt_chart_images(c, &(dt_images){ .n = 100,
                                     .columns = 10,
                                     .width = 28,
                                     .height = 28,
                                     .pixels = sheet,
                                     .captions = captions });
    save_picture(NULL, c, "\npicture  ", "%s/ch02_digits.png", folder);
    free(sheet);
}

int main(int argc, char **argv) {
    const char *which = "auto", *folder = "out";
    int images = 0, batch = 128;
    uint64_t seed = 1234;
    const option_desc options[] = {
        DATA_OPTION(&which),
        { "images", 'i', &images, "N    use the first N training images, default all" },
        { "batch", 'i', &batch, "B     images in a global batch, default 128" },
        { "seed", 'u', &seed, "S      of every shuffle, default 1234" },
        FIGURES_OPTION(&folder),
    };
    dt_comm *comm =
        begin_program(argc, argv,
                      "Chapter 2: IDX files, the partition, the sampler, exact batches.", options,
                      sizeof options);
    check_output(comm, "%s/ch02_digits.png", folder);
    dt_dataset train, test, part;
    load_data(comm, which, "ch02", &train, &test);
    check(comm, dt_dataset_view(&part, &train, 0,
                                images && (uint32_t)images < train.count ? (uint32_t)images
                                                                         : train.count));
    print_machine(comm, &train, 1);

    show_file(&test);
    show_normalisation(&train);
    show_partition(&part, seed);
    show_luck(part.count, seed);
    show_sampler(seed);
    show_batches(&part, (uint32_t)batch, seed);
    draw_sheet(&train, folder);

    return end_program(comm, &train, &test);
}

// ## 2.10 Exercises
//
// 1. **Predict.** 60 000 images, batch 128: how many steps has an epoch, how many images its last
//    step? With 64 ranks, how many ranks have nothing to do in a full step?
// 2. **Predict.** Sort the images by label before cutting five equal shares. What does rank 0 see?
//    Five nets are trained, each on one such share, and averaged: what does the average know?
// 3. **Implement.** Let `read_idx` accept files compressed by gzip by reading from `popen("gzip -dc
//    …")`. What happens to the check of the length, and what can take its place?
// 4. **Implement.** A sampler that balances labels: every global batch of 120 has twelve images of
//    each.
// 5. **Measure.** The lottery of 2.6 for P = 2, 10 and 100. Towards which number do the images
//    never seen go?
