// Chapter 0. What is learned                                        uses [S2] [S3.1] [E8.1]
//
// You will learn   what the words of the field mean, on a model with one single number in it
// New              everything; you need C, and the slope of a parabola
// Takes            half an hour
// Run              make ch00 && ./ch00
// Check            ./ch00 --figures build/check
//
//| 64 examples to learn from, 64 to be asked about later
//| weight 0.0000   loss 12.6986   gradient by formula -8.3566, by nudging the weight -8.3566
//| step  0   weight 0.0000   loss 12.6986   gradient  -8.3566
//| step 20   weight 2.8389   loss 0.2555   gradient  -0.4096
//| best weight, solved for: 2.9852; the mean of x x is 1.40
//| learning rate 0.8: the loss after 20 steps is 6.7e+04
//| epoch 3,  4 steps of 16 examples: weight 2.9992
//| 4 ranks, 16 examples each: the mean of their gradients is the batch's
//| remembers    training loss 0.0000   test loss 0.5380
//| one weight   training loss 0.2255   test loss 0.1976
//| picture  build/check/ch00_loss.png

#include "chapter.h"

// ## 0.1 How to read these chapters
//
// Each chapter is one C file, and what you are reading is a comment in it. Build and run it with
// the two commands in the line Run above; it prints, and it draws pictures into `out/`. Then read
// it from the top, and hold what it prints against the code. Every chapter ends with exercises.
//
// A few marks return in all of them:
//
// - A line that begins with `//|` above is printed by the program, exactly so, and a test checks it
//   (`make check`). In a line with `//~` each number may differ on your machine.
// - `[S2]` names a section of the library, dtrain.h, beside which this book is written: search the
//   file for it. Sections with S are made to be read; those with E are the engine room.
// - Lines such as `[region: loss]` and `[end]` enclose code that the book shows. They do nothing.
// - A line that says Picture and a name, such as ch00_loss, stands where a picture belongs: it is
//   in figures/ch00_loss.png, and its numbers beside it in figures/ch00_loss.csv.
// - `expect(...)` prints a MISMATCH if what it is told is not so, and the program then fails.
//   `check(...)` ends the program if a function of the library reports an error. These and the
//   other helpers are in chapter.h; no chapter is about them.
//
// A word of the field is explained where it first comes up. The glossary at the end has them all.
// Answers to the exercises that ask you to predict are in answers.md. If you change a program and
// the compiler refuses a variable that is not used yet: `make ch00 WARN=-Wall`.

// ## 0.2 A model with one weight
//
// We have **examples**: pairs of an input x and the right answer t, its **target**. Somebody
// measured them, so they are not exact. Ours lie near a line, t = 3 x, and we act as if we did not
// know the 3.
//
// A **model** is a function from inputs to answers with numbers in it that are to be found. Those
// numbers are its **parameters**. Ours has one, the **weight** w:
//
//     answer = w * x
//
// A **net** is a model made of many such multiplications, one behind another in **layers**; the one
// of chapter 3 has 9 840 parameters, most of them weights, the rest **biases**, which are added
// instead of multiplied. Everything in this chapter is true of it as well: only "the weight"
// becomes "each of them".
//
// To **learn**, or to **train**, means to choose the parameters by looking at examples.

typedef struct example { double x, t; } example;
enum { EXAMPLES = 64 };
static example training[EXAMPLES], test[EXAMPLES];

// x is uniform between -2 and 2; what is wrong with t, the *noise*, lies around 0. The library's
// random numbers are functions of what they are for (chapter 1): the same on every machine.
static void measure_examples(example *e, uint32_t which) {
    for (uint32_t i = 0; i < EXAMPLES; ++i) {
        const dt_philox_block r = dt_philox(1234, DT_RNG_TEST, which, i, 0);
        e[i].x = 4.0 * (double)dt_uniform(r.v[0]) - 2.0;
        e[i].t = 3.0 * e[i].x;
        for (int k = 1; k < 4; ++k) e[i].t += (double)dt_uniform(r.v[k]) - 0.5;
    }
}

// ## 0.3 Loss: how wrong is it?
//
// Nobody can look for a good weight without a number that says how good one is. The **loss** is
// such a number: small is good. A natural one is the mean of the squared differences between
// answers and targets. Squared, so that too much and too little both count, and one large mistake
// counts more than several small ones. (Nets that choose between classes have another loss: chapter
// 5.)

// [region: loss]
static double loss(double w, const example *e, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; ++i) sum += (w * e[i].x - e[i].t) * (w * e[i].x - e[i].t);
    return sum / n;
}
// [end]

// ## 0.4 Gradient: which way?
//
// If we make w a little larger, does the loss grow or shrink, and how fast? That is the loss's
// slope, its **gradient**. (With many parameters there is a slope by each of them, and the gradient
// is all of them together, as many numbers as parameters.) One example's loss is (w x - t)^2, and
// its slope by w is 2 (w x - t) x. The slope of a mean is the mean of the slopes:

// [region: gradient]
static double gradient(double w, const example *e, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; ++i) sum += 2.0 * (w * e[i].x - e[i].t) * e[i].x;
    return sum / n;
}
// [end]

// Is that formula right? Ask the loss itself: nudge w to both sides and see how much it changes.
// This is slow, two losses for each parameter, but needs no formula; chapter 5 proves a whole net
// with it.

static void check_gradient(void) {
    const double h = 1e-4;
    const double above = loss(h, training, EXAMPLES), below = loss(-h, training, EXAMPLES);
    const double nudged = (above - below) / (2.0 * h);
    const double formula = gradient(0.0, training, EXAMPLES);
    printf("weight 0.0000   loss %.4f   gradient by formula %.4f, by nudging the weight %.4f\n",
           loss(0.0, training, EXAMPLES), formula, nudged);
    expect(fabs(formula - nudged) < 1e-6, "the gradient is not the slope of the loss");
}

// ## 0.5 Step: a little downhill
//
// A gradient below zero says that the loss falls as w grows. So take a **step** against it:
//
//     w -= learning rate * gradient
//
// and again, and again. This is **gradient descent**. The **learning rate** says how far to trust a
// slope that holds only here. Near the bottom the slope is small, and so are the steps; nobody has
// to slow down. An **optimizer** is a rule for steps, and this one is the simplest (chapter 6 has
// more).

// [region: descend]
static double descend(double w, double rate, int steps, double *losses, bool show) {
    for (int s = 0; s <= steps; ++s) {
        const double l = loss(w, training, EXAMPLES), g = gradient(w, training, EXAMPLES);
        losses[s] = l;
        if (show && s % 5 == 0)
            printf("step %2d   weight %.4f   loss %.4f   gradient %8.4f\n", s, w, l, g);
        if (s < steps) w -= rate * g;
    }
    return w;
}
// [end]

// For one weight and this loss there is no need to search. Written out, the slope is
//
//     slope = 2 w mean(x x) - 2 mean(x t)
//
// and that is zero where w is the sum of x t over the sum of x x: the best weight. That is the
// judge here. A net has no such formula, only the search.
//
// With it the slope is 2 mean(x x) (w - best). A step takes rate times that from w, so from the
// distance w - best as well: each step multiplies the distance by 1 - 2 * rate * mean(x x), and the
// mean of x x is 1.40. A rate of 0.05 leaves 86 % of the distance each time; 0.3 leaves 16 %; 0.8
// leaves -124 %: the weight lands on the other side, further away, and so on for ever. The loss
// **diverges**.

enum { STEPS = 20, RATES = 4 };
static const double rates[RATES] = { 0.01, 0.05, 0.3, 0.8 };
static double losses[RATES][STEPS + 1];

static double best_weight(double *mean_xx) {
    double xt = 0.0, xx = 0.0;
    for (int i = 0; i < EXAMPLES; ++i) {
        xt += training[i].x * training[i].t;
        xx += training[i].x * training[i].x;
    }
    *mean_xx = xx / EXAMPLES;
    return xt / xx;
}

static void show_descent(void) {
    double xx, w = best_weight(&xx);
    for (int k = 0; k < RATES; ++k) descend(0.0, rates[k], STEPS, losses[k], k == 1);
    printf("best weight, solved for: %.4f; the mean of x x is %.2f\n", w, xx);
    printf("learning rate %.1f: the loss after %d steps is %.1e\n", rates[3], STEPS,
           losses[3][STEPS]);
    expect(fabs(gradient(w, training, EXAMPLES)) < 1e-12, "the best weight's slope is not zero");
    expect(losses[1][STEPS] < losses[1][0], "a rate of 0.05 does not descend");
    expect(losses[3][STEPS] > losses[3][0], "a rate of 0.8 does not diverge");
}

// ## 0.6 Batch, epoch, stochastic
//
// With 60 000 images one does not look at all of them for each step. A step looks at a **batch**,
// of 16 examples here, of 128 later; its gradient is a rough estimate of that of all, and for the
// price of one exact step there are four rough ones. As the batches are drawn at random, this is
// called **stochastic** gradient descent, **SGD**. Once through all examples is an **epoch**: here
// 4 steps.
//
// The examples are shuffled anew for every epoch, so that no batch is always the same.

// [region: epochs]
static double train_in_batches(double rate, int batch, int epochs) {
    uint32_t order[EXAMPLES];
    example b[EXAMPLES];
    double w = 0.0;
    for (int epoch = 0; epoch < epochs; ++epoch) {
        dt_permutation(order, EXAMPLES, 1234, DT_RNG_SHUFFLE, (uint32_t)epoch);
        for (int first = 0; first < EXAMPLES; first += batch) {
            for (int i = 0; i < batch; ++i) b[i] = training[order[first + i]];
            w -= rate * gradient(w, b, batch);
        }
        printf("epoch %d, %2d steps of %d examples: weight %.4f\n", epoch, EXAMPLES / batch, batch,
               w);
    }
    return w;
}
// [end]

// The weight does not come to rest: each batch has a best weight of its own and pulls towards it. A
// smaller rate pulls less. That restlessness is the price of cheap steps.

// ## 0.7 Rank: several who share the work
//
// This book is about doing it in parallel. Several processes, each with memory of its own, are
// numbered 0, 1, 2, ... A process with its number is a **rank**; **P** is how many there are. All
// hold the same weight. Each takes its part of the batch and computes that part's gradient; the
// parts are added up over all ranks (an **all-reduce**, chapter 7), and each rank takes the same
// step, so all weights stay the same. With equal parts the mean of the P gradients is the batch's
// gradient:
//
//     (1/64) sum over all 64   =   mean over 4 ranks of  (1/16) sum over the rank's 16
//
// That is all of chapter 8, but for what floats do to the last digits.

static void share_between_ranks(void) {
    enum { P = 4, EACH = EXAMPLES / P };
    double sum = 0.0;
    for (int rank = 0; rank < P; ++rank) sum += gradient(1.0, training + rank * EACH, EACH);
    const bool same = fabs(sum / P - gradient(1.0, training, EXAMPLES)) < 1e-12;
    printf("%d ranks, %d examples each: the mean of their gradients is %s\n", P, EACH,
           same ? "the batch's" : "another one");
    expect(same, "shares of a gradient do not add up");
}

// ## 0.8 Test set: does it know, or does it remember?
//
// Here is a model that is perfect: it stores all 64 examples, and answers with the target of the
// nearest x that it has seen. Its loss on those is exactly 0. Is it better than one weight? Ask
// both about 64 examples that neither has seen, the **test set**. What the first has learned is the
// noise, and noise does not come twice: that is **overfitting**. A loss on the training examples
// alone would never tell, and this is why every chapter from here on keeps test images apart, and
// why nothing, no weight and no learning rate, may be chosen by looking at them.

static double remembered(double x) {
    int nearest = 0;
    for (int i = 1; i < EXAMPLES; ++i)
        if (fabs(training[i].x - x) < fabs(training[nearest].x - x)) nearest = i;
    return training[nearest].t;
}

static double loss_of_memory(const example *e) {
    double sum = 0.0;
    for (int i = 0; i < EXAMPLES; ++i)
        sum += (remembered(e[i].x) - e[i].t) * (remembered(e[i].x) - e[i].t);
    return sum / EXAMPLES;
}

static void ask_about_others(void) {
    double xx, w = best_weight(&xx);
    const double known = loss_of_memory(training), unknown = loss_of_memory(test);
    printf("remembers    training loss %.4f   test loss %.4f\n", known, unknown);
    printf("one weight   training loss %.4f   test loss %.4f\n", loss(w, training, EXAMPLES),
           loss(w, test, EXAMPLES));
    expect(known <= 0.0, "a model that remembers has forgotten an example");
    expect(unknown > loss(w, test, EXAMPLES), "memory beats one weight on the test set");
}

// ## 0.9 Two pictures
//
// The examples with the line that was learned; and the loss over the steps, for the four rates.
// Rate 0.3 is at the bottom after three steps, 0.05 after twenty nearly, 0.01 is still far away,
// and 0.8 multiplies the loss by 1.5 each time (1.24 squared). The bottom is not 0 but 0.2255: the
// noise, which no weight explains.
//
// Picture: ch00_data
//
// Picture: ch00_loss

static void draw(const char *folder, double w) {
    double x[EXAMPLES], t[EXAMPLES], step[STEPS + 1];
    char title[160], label[RATES][40], line[40];
    for (int i = 0; i < EXAMPLES; ++i) x[i] = training[i].x, t[i] = training[i].t;
    snprintf(title, sizeof title, "%d examples, and the line that %d steps have found", EXAMPLES,
             STEPS);
    snprintf(line, sizeof line, "answer = %.2f x", w);
    dt_chart *c = dt_chart_new(&(dt_chart_desc){ .title = title, .x_label = "input x",
        .y_label = "target t", .caption = "Learning rate 0.05", .machine = true });
    dt_chart_line(c, &(dt_series){ .label = "examples", .n = EXAMPLES, .x = x, .y = t,
                                   .style = DT_LINE_POINTS });
    dt_chart_reference(c, &(dt_reference){ .label = line, .slope = w, .from = -2.0, .to = 2.0 });
    save_picture(NULL, c, "picture  ", "%s/ch00_data.png", folder);

    snprintf(title, sizeof title, "Too small a learning rate is slow, too large a one diverges");
    for (int s = 0; s <= STEPS; ++s) step[s] = s;
    c = dt_chart_new(&(dt_chart_desc){ .title = title,
                                       .x_label = "steps",
                                       .y_label = "training loss",
                                       .y_scale = DT_LOG10,
                                       .caption = "One weight, 64 examples a step",
                                       .machine = true });
    for (int k = 0; k < RATES; ++k) {
        snprintf(label[k], sizeof label[k], "rate %g", rates[k]);
        dt_chart_line(c, &(dt_series){ .label = label[k], .n = STEPS + 1, .x = step,
                                       .y = losses[k], .style = DT_LINE_PLAIN });
    }
    save_picture(NULL, c, "picture  ", "%s/ch00_loss.png", folder);
}

int main(int argc, char **argv) {
    const char *folder = "out";
    const option_desc options[] = { FIGURES_OPTION(&folder) };
    dt_comm *comm = begin_program(argc, argv, "Chapter 0: what is learned, on one weight.", options,
                                  sizeof options);
    check_output(comm, "%s/ch00_data.png", folder);
    measure_examples(training, 0);
    measure_examples(test, 1);
    printf("%d examples to learn from, %d to be asked about later\n\n", EXAMPLES, EXAMPLES);

    check_gradient();
    printf("\n");
    show_descent();
    printf("\n");
    train_in_batches(0.1, 16, 4);
    printf("\n");
    share_between_ranks();
    printf("\n");
    ask_about_others();
    draw(folder, descend(0.0, rates[1], STEPS, losses[1], false));
    return end_program(comm, NULL, NULL);
}

// ## 0.10 Exercises
//
// 1. **Predict.** At which learning rate does the loss neither fall nor grow? Use the factor of
//    0.5, then set `rates[3]` to it.
// 2. **Predict.** With batches of one example, how many steps has an epoch? Will the weight be more
//    or less restless after it than with batches of 16? Change the call in `main` and look.
// 3. **Implement.** A second parameter, the bias b: answer = w x + b. Its gradient is the mean of
//    2 (w x + b - t). Add 1 to every target: does the net find it?
// 4. **Measure.** Train on the first 4 examples only. How far is the weight from 3, and how far
//    with all 64? What do training and test loss say in each case?

// ## Glossary
//
// Words of the field, and the section in which each is explained.
//
// - **accuracy**: the share of test images whose most probable label is right (3.3)
// - **activation**: a value between two layers; one for each image (3.3)
// - **accumulation** of gradients: a step takes its images in parts, one sum over all (11.1)
// - **all-reduce**: leaves the sum of every rank's values on every rank (0.7, 7.1)
// - **backward pass**: from the loss back to the gradient of every parameter (5.1)
// - **batch**: the examples that one step looks at (0.6). *Global*: those of all ranks together
//   (2.8)
// - **batch norm**: brings each channel to mean 0 and standard deviation 1 over a batch (11.3)
// - **bias**: a parameter that is added (0.2)
// - **channel**: one of several pictures of the same place: red, green and blue (1.1), or what one
//   kernel has found (3.1). C of them come in, O go out
// - **class, label**: what an image shows, a number from 0 to 9 (2.1)
// - **convolution**: the same small kernel, at every place of an image (3.1)
// - **data parallel, model parallel**: each rank has a part of the images, or of the net (11.5)
// - **deadlock**: all wait for each other, for ever (7.3)
// - **dropout**: erases some values at random while training, so that no value is relied on (5.3)
// - **epoch**: once through all training examples (0.6)
// - **fan-in**: how many inputs one output adds up (1.5)
// - **forward pass**: from an input through all layers to the loss (3.3)
// - **ghost batch norm**: batch norm over sixteen images, however large the batch (11.3)
// - **gradient**: the slope of the loss, by each parameter (0.4)
// - **H, W**: rows and columns of an image (1.1); P, Q of what a convolution leaves (3.1)
// - **Hogwild**: threads change one shared parameter vector without a lock (10.1)
// - **kernel**: the weights that a convolution slides over an image, K x K (3.1). Also: a short
//   program that does one operation fast (4.1)
// - **lane**: one of the numbers that a vector register holds side by side (4.4)
// - **layer**: one operation of a net, with its parameters (0.2)
// - **learning rate, lr**: how far a step goes for its gradient (0.5)
// - **local SGD**: ranks train alone, and average their parameters every H steps (9.2)
// - **loss**: how wrong the answers are, one number, small is good (0.3)
// - **model, net**: a function with parameters in it (0.2)
// - **momentum**: a running sum of gradients that a step follows (6.1)
// - **MPI**: the standard by which processes send each other messages (7.1)
// - **N C H W**: the order of a batch of images in memory: image, channel, row, column (1.1)
// - **normalise**: bring numbers to mean 0 and standard deviation 1 (2.3)
// - **optimizer**: a rule for steps (0.5, 6.1)
// - **outer momentum**: a momentum from one average of the ranks to the next (9.3)
// - **overfitting**: learning the training examples' noise (0.8)
// - **P**: how many ranks there are (0.7); in chapters 3 and 4, rows that come out
// - **parameter**: a number that is learned (0.2)
// - **PSGD, parallel SGD**: ranks train alone, and average their parameters once (9.1)
// - **rank**: a process, or a thread, with its number (0.7). Of a tensor: how many indices it has
//   (1.1)
// - **ReLU**: a layer that replaces what is negative by zero (3.2)
// - **seed**: the number from which all random numbers of a run follow (1.4)
// - **SGD, stochastic gradient descent**: steps by the gradient of a random batch (0.6)
// - **softmax**: turns any numbers into probabilities (3.2)
// - **staleness**: the steps of others between a worker's copy and its addition (10.3)
// - **step**: one change of the parameters (0.5)
// - **stride**: how far apart in memory two neighbours by one index lie (1.1). Of a convolution:
//   how far its kernel moves from one output to the next (3.1)
// - **target**: the right answer (0.2)
// - **tensor**: numbers with several indices (1.1)
// - **test set**: examples that are never learned from (0.8)
// - **variance**: the mean square of the distance from the mean (1.5)
// - **warm-up**: the learning rate rises over the first steps (11.2)
// - **weight**: a parameter that is multiplied (0.2)
