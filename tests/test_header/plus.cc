// C++ includes the declarations; a C file holds the implementation.
#include "dtrain.h"
#include "dtrain.h"
#include <cstring>

static int build() {
    dt_net *net = dt_net_new(1, 6, 6);
    dt_conv2d_desc conv = dt_conv2d_desc();
    conv.out = 2;
    conv.kernel = 3;
    dt_build_desc desc = dt_build_desc();
    desc.batch = 4;
    dt_conv2d(net, "conv", &conv);
    dt_linear(net, "fc", 3);
    const dt_err error = dt_net_build(net, &desc);
    dt_optimizer *opt = nullptr;
    dt_sgd_desc sgd = dt_sgd_desc();
    const bool refused = !(opt = dt_sgd(net, &sgd)) && std::strstr(dt_error(), "learning rate");
    dt_optimizer_free(opt);
    dt_net_free(net);
    return error == DT_OK && refused ? 0 : 1;
}

int main() { return build(); }
