// dtrain from C++: two epochs on the built-in synthetic digits; the net is saved, and read back into another one.
//
// Run     make cpp_app && ./cpp_app digits.safetensors
//         make infer && ./infer --load digits.safetensors --data synthetic        (it is chapter 12's net)
//
// dtrain.h declares everything extern "C"; the code is in examples/cpp_impl.c, compiled as C. Errors become exceptions here,
// and owners free what they own.

#include "../dtrain.h"
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>

static void check(dt_err error) {
    if (error != DT_OK) throw std::runtime_error(dt_error());
}

struct free_net { void operator()(dt_net *net) const { dt_net_free(net); } };
struct free_optimizer { void operator()(dt_optimizer *opt) const { dt_optimizer_free(opt); } };
using net_ptr = std::unique_ptr<dt_net, free_net>;
using optimizer_ptr = std::unique_ptr<dt_optimizer, free_optimizer>;

struct digits { // a data set that frees itself
    dt_dataset all{}, training{}, testing{};
    explicit digits(uint32_t train, uint32_t test) {
        check(dt_dataset_synthetic(&all, train + test, 1));
        check(dt_dataset_view(&training, &all, 0, train));
        check(dt_dataset_view(&testing, &all, train, test));
    }
    ~digits() { dt_dataset_free(&all); }
    digits(const digits &) = delete;
    digits &operator=(const digits &) = delete;
};

static void convolution(dt_net *net, const char *name, int out) {
    dt_conv2d_desc desc{};
    desc.out = out;
    desc.kernel = 5;
    dt_conv2d(net, name, &desc);
}

static net_ptr make_net(uint64_t seed) {
    net_ptr net(dt_net_new(1, 28, 28));
    convolution(net.get(), "conv1", 10);
    dt_maxpool2d(net.get(), 2);
    dt_relu(net.get());
    convolution(net.get(), "conv2", 20);
    dt_maxpool2d(net.get(), 2);
    dt_dropout2d(net.get(), 0.5f);
    dt_relu(net.get());
    dt_maxpool2d(net.get(), 2);
    dt_linear(net.get(), "fc1", 50);
    dt_relu(net.get());
    dt_linear(net.get(), "fc2", 10);
    dt_build_desc desc{};
    desc.batch = 64;
    desc.seed = seed;
    check(dt_net_build(net.get(), &desc));
    return net;
}

static bool tell(const dt_progress *progress, void *) {
    if (progress->epoch_ended) std::printf("epoch %d   loss %.4f\n", progress->epoch + 1, dt_score_loss(&progress->score));
    return true; // false would stop the training
}

static void train(dt_net *net, const dt_dataset &data) {
    const std::unique_ptr<dt_comm, void (*)(dt_comm *)> alone(dt_comm_alone(), dt_comm_free);
    dt_adam_desc adam = dt_adam_defaults();
    adam.lr = 0.002f;
    const optimizer_ptr opt(dt_adam(net, &adam));
    if (!alone || !opt) throw std::runtime_error(dt_error());
    dt_train_desc desc{};
    desc.data = &data;
    desc.epochs = 2;
    desc.batch = 64;
    desc.seed = 1;
    desc.on_step = tell;
    dt_train_result result;
    check(dt_train_sync(net, opt.get(), alone.get(), &desc, &result));
}

int main(int argc, char **argv) try {
    const char *file = argc > 1 ? argv[1] : "digits.safetensors";
    check(dt_check_writable(file)); // before the work, not after it
    const digits data(12000, 2000);
    const net_ptr net = make_net(1), again = make_net(2);
    train(net.get(), data.training);
    dt_score score;
    check(dt_evaluate(net.get(), &data.testing, nullptr, &score));
    check(dt_save(net.get(), file));
    check(dt_load(again.get(), file));
    std::printf("%.1f %% of %u test images are right; saved in %s, read back: %s\n", 100.0 * dt_score_accuracy(&score), data.testing.count, file,
                dt_net_hash(net.get()) == dt_net_hash(again.get()) ? "the same bits" : "OTHER BITS");
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw std::runtime_error("standard output cannot be written");
    return dt_net_hash(net.get()) == dt_net_hash(again.get()) ? 0 : 1;
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
