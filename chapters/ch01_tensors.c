// Chapter 1. Tensors, names and random numbers               uses [S2] [S3.1] [S8.1]
//
// You will learn   how t[i][j][k][l] becomes an address; what a named value is; random numbers
//                  without a state
// New since ch00   everything: about 190 lines
// Run              make ch01 && ./ch01
// Check            ./ch01 --quick --figures build/check
//
//| tensor 2 x 3 x 4 x 5   120 floats   strides 60 20 5 1
//| t[1][2][3][4] lies 60*1 + 20*2 + 5*3 + 1*4 = 119 floats behind t[0][0][0][0]
//| all 120 addresses agree with dt_tensor_at
//| 9840 parameters under 8 names
//| philox(key 0, counter 0)  6627e8d5 e169c58d bc57ac4c 9b00dbd8
//| 3 published vectors and 1000 random counters agree with dt_philox
//~ uniform     <num> numbers: mean <num>, standard deviation <num>
//| initial weights by hand: 9840 of 9840 have the net's bits

#include "chapter.h"

// ## 1.1 Four indices, one address
//
// A net for images knows nothing but blocks of numbers. A batch of images is a block of N x C x H x
// W floats: N images, each of C channels (a grey picture has one; red, green and blue are three),
// each of H rows and W columns. The weights that look at such images are a block with four indices
// too. A **tensor** is such a block: numbers with several indices. How many indices is its *rank*;
// that word again, and nothing to do with 0.7's. Memory has one dimension. So a rule is needed that
// turns four indices into one position, and everybody uses the same one: **the last index runs
// fastest** ("row-major"). To move by one in an index, skip everything that the indices to its
// right can say. That skip is the index's **stride**:
//
//     shape    2    3    4    5
//     stride  60   20    5    1         each is the one on its right times the size on its right
//
// and the address of t[i][j][k][l] is `data + 60 i + 20 j + 5 k + l`. That is all a tensor is: a
// pointer, sizes, strides.

// [region: view]
typedef struct view {
    float *data;
    int shape[4], stride[4];
} view;

static view row_major(float *data, int n, int c, int h, int w) {
    return (view){ data, { n, c, h, w }, { c * h * w, h * w, w, 1 } };
}

static float *at(const view *t, int i, int j, int k, int l) {
    return t->data + i * t->stride[0] + j * t->stride[1] + k * t->stride[2] + l * t->stride[3];
}
// [end]

// Is it the header's rule as well? We ask about every address there is, not about one.

static int same_addresses(const view *mine, const dt_tensor *theirs) {
    int same = 0;
    for (int i = 0; i < mine->shape[0]; ++i)
        for (int j = 0; j < mine->shape[1]; ++j)
            for (int k = 0; k < mine->shape[2]; ++k)
                for (int l = 0; l < mine->shape[3]; ++l)
                    same += at(mine, i, j, k, l) == dt_tensor_at(theirs, i, j, k, l);
    return same;
}

// ## 1.2 A printed tensor, and one turned around for nothing
//
// Each value below spells its own indices: 123.4 stands at [1][2][3][4]. Read along a row and you
// read along memory.
//
// Now swap two sizes *and* their two strides. No float moves, and yet rows have become columns: the
// second print is the same memory. This is what a transposition costs in a library that keeps
// strides: nothing, until somebody reads it in an order in which memory is far apart. Chapter 4 is
// about that price.

static void print_matrix(const view *t, int i, int j) {
    for (int k = 0; k < t->shape[2]; ++k) {
        printf("   ");
        for (int l = 0; l < t->shape[3]; ++l) printf(" %6.1f", (double)*at(t, i, j, k, l));
        printf("\n");
    }
}

// [region: transpose]
static view transposed(view t) {
    const int rows = t.shape[2], stride = t.stride[2];
    t.shape[2] = t.shape[3];   t.shape[3] = rows;
    t.stride[2] = t.stride[3]; t.stride[3] = stride;
    return t;
}
// [end]

static void show_tensor(void) {
    float memory[2 * 3 * 4 * 5];
    view t = row_major(memory, 2, 3, 4, 5);
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 3; ++j)
            for (int k = 0; k < 4; ++k)
                for (int l = 0; l < 5; ++l)
                    *at(&t, i, j, k, l) = (float)(100 * i + 10 * j + k) + 0.1f * (float)l;

    const dt_tensor theirs = { memory, 4, { 2, 3, 4, 5 } };
    printf("tensor 2 x 3 x 4 x 5   %zu floats   strides %d %d %d %d\n", dt_tensor_count(&theirs),
           t.stride[0], t.stride[1], t.stride[2], t.stride[3]);
    printf("t[1][2][3][4] lies 60*1 + 20*2 + 5*3 + 1*4 = %d floats behind t[0][0][0][0]\n",
           (int)(at(&t, 1, 2, 3, 4) - memory));
    const int same = same_addresses(&t, &theirs);
    printf("all %d addresses agree with dt_tensor_at\n", same);
    expect(same == 120, "addresses differ from dt_tensor_at");

    const view turned = transposed(t);
    printf("t[1][2] =\n");
    print_matrix(&t, 1, 2);
    printf("the same memory with two strides swapped =\n");
    print_matrix(&turned, 1, 2);
    expect(at(&turned, 1, 2, 4, 3) == at(&t, 1, 2, 3, 4), "a transposed view reads other memory");
}

// ## 1.3 Names for the floats
//
// A net has several such blocks. We keep them all in *one* vector, one behind the other, and give
// each a name, a shape and an offset. Those who walk over the whole vector (an optimizer, a sum
// over ranks, a file) need no names; those who look at one block ask for `conv1.weight`. The net is
// one for MNIST's digits, with four layers that have weights: two that slide over the image, conv1
// and conv2 (chapter 3), and two in which every output sees every input ("fully connected"), fc1
// and fc2. It comes from a *lab sheet*, exercises for a course on parallel training. A *lab
// report*, one answer to them, will come up now and then: it has numbers to compare with, and a
// mistake to learn from (8.3). The sheet's first question is this section's: walk over the named
// values, and print each name with the values behind it.

static void show_names(dt_net *net) {
    size_t next = 0;
    printf("\n%-13s %-15s %6s %7s   first values\n", "name", "shape", "offset", "floats");
    // [region: names]
    for (int i = 0; i < dt_net_param_count(net); ++i) {
        const dt_param *p = dt_net_param(net, i);
        char shape[48] = "";
        for (int d = 0; d < p->value.rank; ++d)
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), d ? " x %d" : "%d",
                     p->value.shape[d]);
        printf("%-13s %-15s %6zu %7zu   %8.5f %8.5f %8.5f\n", p->name, shape, p->offset,
               dt_tensor_count(&p->value), (double)p->value.data[0], (double)p->value.data[1],
               (double)p->value.data[2]);
        expect(p->offset == next, "a named value does not begin where the one before it ends");
        next += dt_tensor_count(&p->value);
    }
    // [end]
    printf("%zu parameters under %d names\n", dt_net_count(net), dt_net_param_count(net));
    expect(next == dt_net_count(net), "the named values do not cover the parameter vector");
}

// ## 1.4 A random number is a function
//
// Where do those first values come from? The usual generator has a state: each call changes it, and
// the millionth number exists only after the 999 999 before it. Two ranks that draw in another
// order then disagree about everything.
//
// A *counter-based* generator has none. It is a function `(key, counter) -> 128 random bits`: a
// scrambling so thorough that the counters 0, 1, 2, … come out without any pattern left. Ours is
// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011). One round multiplies two of the four counter
// words by constants, which spreads each bit over 64; the upper halves are mixed with the other two
// words and the key, and all change places. Ten rounds; the key moves on in each.
//
// The key is the seed. The counter says what the number is for: purpose, epoch, sample, running
// number. So the random numbers that belong to image 4711 in epoch 3 can be computed by whoever
// needs them, in any order, and they are always the same.

// [region: philox]
static void philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]) {
    uint32_t k0 = key[0], k1 = key[1], c[4] = { counter[0], counter[1], counter[2], counter[3] };
    for (int round = 1; round <= 10; ++round) {
        const uint64_t a = (uint64_t)0xD2511F53u * c[0];   // 32 x 32 -> 64 bits: nothing is lost
        const uint64_t b = (uint64_t)0xCD9E8D57u * c[2];
        const uint32_t mixed[4] = { (uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b,
                                    (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a };
        memcpy(c, mixed, sizeof c);
        // digits of the golden ratio and of sqrt(3), so that the key of one round differs from the
        // next one's in about half its bits
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}
// [end]

// A generator that is slightly wrong still looks random. So it is held against the test vectors its
// authors publish (Random123, `kat_vectors`): all zero, all one, and the digits of pi.

static void check_philox(uint64_t seed) {
    const struct { uint32_t key[2], counter[4], wanted[4]; } published[] = {
        { { 0, 0 }, { 0, 0, 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { 0xffffffff, 0xffffffff }, { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0xa4093822, 0x299f31d0 }, { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } } };
    uint32_t r[4];
    int vectors = 0, counters = 0;
    for (int i = 2; i >= 0; --i) {
        philox(published[i].key, published[i].counter, r);
        vectors += memcmp(r, published[i].wanted, sizeof r) == 0;
    }
    printf("\nphilox(key 0, counter 0)  %08x %08x %08x %08x\n", r[0], r[1], r[2], r[3]);
    // the counters are random as well: the vector before, turned around
    for (uint32_t i = 0; i < 1000; ++i) {
        const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) },
                       counter[4] = { r[3], r[2], r[1], r[0] + i };
        philox(key, counter, r);
        const dt_philox_block b = dt_philox(seed, counter[3], counter[2], counter[1], counter[0]);
        counters += memcmp(r, b.v, sizeof r) == 0;
    }
    printf("%d published vectors and %d random counters agree with dt_philox\n", vectors, counters);
    expect(vectors == 3, "philox differs from Random123's published vectors");
    expect(counters == 1000, "philox differs from dt_philox");
}

// ## 1.5 From bits to floats
//
// A float has 24 significant bits. The upper 24 of our 32, times 2^-24, are a number in [0, 1):
// each of the 2^24 values equally likely, and 1 itself cannot come. (Dividing all 32 bits by 2^32
// rounds, and one time in 2^25 it rounds to 1.)

static float uniform(uint32_t bits) { return (float)(bits >> 8) / 16777216.0f; }

static void draw_uniform(double *out, size_t n, uint64_t seed) {
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    double sum = 0.0, squares = 0.0;
    for (size_t i = 0; i < n; ++i) {
        uint32_t r[4];
        philox(key, (uint32_t[4]){ (uint32_t)(i / 4), 0, 0, DT_RNG_TEST }, r);
        out[i] = (double)uniform(r[i % 4]);
        sum += out[i];
        squares += out[i] * out[i];
    }
    const double mean = sum / (double)n;
    printf("\nuniform     %zu numbers: mean %.4f, standard deviation %.4f\n", n, mean,
           sqrt(squares / (double)n - mean * mean));
    printf("in theory   mean 0.5000, standard deviation 0.2887 (one over the square root of 12)\n");
}

// A layer's weights and biases begin uniform in ±1/sqrt(fan_in), where fan_in counts the inputs
// that one output adds up. Why the root? The *variance* of numbers is the mean square of their
// distance from their mean, the square of the standard deviation. For uniform numbers in ±a it is
// the mean of the squares from 0 to a, `a*a/3`. (Those above, ±1/2 around 1/2, have 1/12.)
// Variances of independent numbers around zero multiply in products and add up in sums. So a sum of
// fan_in products of such weights with inputs of variance 1 has fan_in times `a*a/3`; with a =
// 1/sqrt(fan_in) that is 1/3, however many inputs there are. With larger weights values would grow
// from layer to layer without end, with smaller ones fade, and gradients with them. (He, Zhang, Ren
// and Sun (2015) ask that the variance stay just the same also where the next layer erases what is
// negative, which is half: `a*a/3 = 2/fan_in`. This net has four layers with weights, and takes the
// first, as PyTorch does.)
//
// With that, all 9 840 values of the table above can be computed by hand: layer number s of those
// with parameters draws its values from the stream (init, 0, s).

// [region: init]
static int initial_by_hand(const dt_net *net, float *values, uint64_t seed) {
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    int written = 0;
    // a weight and its bias share one stream
    for (int i = 0; i < dt_net_param_count(net); i += 2) {
        const dt_tensor *w = &dt_net_param(net, i)->value, *b = &dt_net_param(net, i + 1)->value;
        const size_t weights = dt_tensor_count(w), all = weights + dt_tensor_count(b);
        const float bound = 1.0f / sqrtf((float)(weights / (size_t)w->shape[0]));
        for (size_t k = 0; k < all; ++k) {
            uint32_t r[4];
            philox(key, (uint32_t[4]){ (uint32_t)(k / 4), (uint32_t)i / 2, 0, DT_RNG_INIT }, r);
            values[written++] = (2.0f * uniform(r[k % 4]) - 1.0f) * bound;
        }
    }
    return written;
}
// [end]

static void check_initial(dt_net *net, uint64_t seed) {
    float values[9840];
    int same = 0, n = dt_net_count(net) == 9840 ? initial_by_hand(net, values, seed) : 0;
    for (int i = 0; i < n; ++i)
        same += memcmp(&values[i], &dt_net_values(net)[i], sizeof(float)) == 0;
    printf("initial weights by hand: %d of %d have the net's bits\n", same, n);
    expect(n == 9840 && same == n, "initial weights differ from dt_net_build's");
}

// ## 1.6 Two pictures
//
// Is it even? Fifty bins, and the worst of them named in the title. By chance alone a bin of m
// numbers strays by about the square root of m, the worst of fifty by some 2.5 times that: of
// 20000, by 1.8 %. The picture's worst strays by 1.4 %. The second picture has the initial weights
// of two layers: a fifth of the inputs, so a range wider by the root of five.
//
// Picture: ch01_uniform
//
// Picture: ch01_weights

static double worst_bin(const double *x, size_t n, int bins) {
    size_t count[100] = { 0 };
    double worst = 0.0;
    for (size_t i = 0; i < n; ++i) ++count[(int)(x[i] * bins)];
    for (int b = 0; b < bins; ++b)
        worst = larger(worst, fabs((double)count[b] * bins / (double)n - 1.0));
    return worst;
}

static void draw_pictures(const char *folder, const double *x, size_t n, const dt_net *net,
                          uint64_t seed) {
    char title[160], caption[160], many[32];
    const double worst = worst_bin(x, n, 50);
    dt_number_text((double)n, 6, many, sizeof many);
    snprintf(title, sizeof title, "%s numbers of Philox fill fifty bins to within %.1f %%", many,
             100.0 * worst);
    snprintf(caption, sizeof caption, "Philox4x32-10, seed %llu", (unsigned long long)seed);
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = title,
                                                 .x_label = "value",
                                                 .y_label = "numbers in a bin of 0.02",
                                                 .caption = caption,
                                                 .machine = true });
    dt_chart_histogram(c, &(dt_histogram){ .n = n, .values = x, .bins = 50 });
    dt_chart_reference(c, &(dt_reference){ .label = "even", .offset = (double)n / 50.0 });
    save_picture(NULL, c, "picture     ", "%s/ch01_uniform.png", folder);

    static double first[500], second[5000];
    const dt_param *w1 = dt_net_find(net, "fc2.weight"), *w2 = dt_net_find(net, "conv2.weight");
    double most1 = 0.0, most2 = 0.0;
    for (int i = 0; i < 500; ++i) most1 = larger(most1, fabs(first[i] = (double)w1->value.data[i]));
    for (int i = 0; i < 5000; ++i)
        most2 = larger(most2, fabs(second[i] = (double)w2->value.data[i]));
    snprintf(title, sizeof title,
             "More inputs, smaller initial weights: up to %.3f for 50 inputs, up to %.3f for 250",
             most1, most2);
    c = dt_chart_new(&(dt_chart_desc){ .title = title,
                                       .x_label = "initial weight",
                                       .y_label = "weights in a bin of about 0.011",
                                       .caption = "MNIST net, uniform in ±1/sqrt(fan_in)",
                                       .machine = true });
    dt_chart_histogram(c, &(dt_histogram){ .label = "conv2.weight, fan_in 250",
                                           .n = 5000,
                                           .values = second,
                                           .bins = 11 });
    dt_chart_histogram(c, &(dt_histogram){ .label = "fc2.weight, fan_in 50",
                                           .n = 500,
                                           .values = first,
                                           .bins = 25 });
    save_picture(NULL, c, "picture     ", "%s/ch01_weights.png", folder);
}

int main(int argc, char **argv) {
    const char *folder = "out";
    int count = 0;
    uint64_t seed = 1234;
    bool quick = false;
    const option_desc options[] = {
        { "count", 'i', &count,
          "N   uniform numbers to draw; default 1000000, with --quick 100000" },
        { "seed", 'u', &seed, "S   of every random number; default 1234" },
        FIGURES_OPTION(&folder),
        QUICK_OPTION(&quick),
    };
    dt_comm *comm = begin_program(argc, argv, "Chapter 1: tensors, named values, random numbers.",
                                  options, sizeof options);
    check_output(comm, "%s/ch01_weights.png", folder);
    const size_t n = count ? (size_t)count : quick ? 100000 : 1000000;
    double *x = malloc(n * sizeof *x);
    dt_net *net = mnist_net(10);
    check(comm, dt_net_build(net, &(dt_build_desc){ .batch = 1, .seed = seed }));
    if (!x) usage_error(comm, "ch01", "--count: more numbers than memory holds");

    show_tensor();
    show_names(net);
    check_philox(seed);
    draw_uniform(x, n, seed);
    check_initial(net, seed);
    draw_pictures(folder, x, n, net, seed);

    free(x);
    dt_net_free(net);
    return end_program(comm, NULL, NULL);
}

// ## 1.7 Exercises
//
// 1. **Predict.** A tensor of 128 x 10 x 24 x 24 floats: how many bytes lie between t[3][0][0][0]
//    and t[4][0][0][0]? Between t[0][0][0][0] and t[0][0][1][0]? Which of the four indices would
//    you let run in the innermost loop, and why?
// 2. **Predict.** Leave out one of Philox's ten rounds. Will the histogram show it? Will `./ch01`?
// 3. **Implement.** The header keeps sixteen images side by side: [group][C][H][W][16]. Write the
//    strides of a view of rank 4 with which `at(t, n, c, h, w)` reads image n < 16 of one group in
//    this order.
// 4. **Implement.** Normal numbers from uniform ones (Box and Muller 1958: sqrt(-2 ln u1) cos(2 pi
//    u2)). Mind u1 = 0.
// 5. **Measure.** Sum a tensor of 64 x 64 x 64 x 64 floats with the loops in the order i, j, k, l,
//    then in the order l, k, j, i. Divide the times. Repeat with 8 x 8 x 8 x 8 and explain what
//    changed.
