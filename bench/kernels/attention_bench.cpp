// SPDX-License-Identifier: MIT
// The speed of attention, forward and backward, beside products of the same processor.
#include "measure.hpp"

#include <unitscale/base/caches.hpp>
#include <unitscale/base/huge_pages.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/kernels/attention.hpp>
#include <unitscale/kernels/attention_products.hpp>
#include <unitscale/products/product.hpp>

#include <CLI/CLI.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <type_traits>
#include <vector>

using namespace unitscale;
using namespace unitscale::bench;

namespace {

struct Sizes {
    std::ptrdiff_t batch, heads, length, depth;
    bool causal;
};

std::vector<float> numbers(std::ptrdiff_t count, std::uint64_t seed) {
    std::vector<float> x(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = (static_cast<float>(random_word({1, seed}, i)) - 0x1p31f) * 0x1p-31f;
    return x;
}

/// 10^9 operations a second, medians of rounds in turn: forward and backward, in FP32 and in 8 bits, and a product of
/// 512 x 512 x 512. An operation is a multiplication or an addition of a product for a key that a query sees: of two
/// products forward, and of five backward.
void measure(const Sizes& shape, int threads, int rounds) {
    const std::ptrdiff_t row = shape.heads * shape.depth, size = shape.batch * shape.length * row;
    const std::vector<float> q = numbers(size, 1), k = numbers(size, 2), v = numbers(size, 3), dy = numbers(size, 4);
    std::vector<float> out(q.size()), dq(q.size()), dk(q.size()), dv(q.size()),
        log_sum(static_cast<std::size_t>(shape.batch * shape.heads * shape.length));
    const auto view = [&](auto* data) {
        return kernels::AttentionView<std::remove_pointer_t<decltype(data)>>{data, shape.length * row, row,
                                                                             shape.depth};
    };
    kernels::AttentionArguments<float> args;
    args.batch = shape.batch;
    args.heads = args.groups = shape.heads;
    args.queries = args.keys = shape.length;
    args.depth = shape.depth;
    args.q = view(q.data());
    args.k = view(k.data());
    args.v = view(v.data());
    args.out = view(out.data());
    args.log_sum = log_sum.data();
    args.logit_scale = 0.125f;
    args.causal = shape.causal;
    kernels::AttentionGradients<float> gradients;
    gradients.forward = args;
    gradients.dout = view(dy.data());
    gradients.dq = view(dq.data());
    gradients.dk = view(dk.data());
    gradients.dv = view(dv.data());

    MemoryPool pool(huge_page_advice());
    const Execution execution{threads, &pool};
    constexpr std::ptrdiff_t n = 512;
    const std::vector<float> a = numbers(n * n, 5), b = numbers(n * n, 6);
    std::vector<float> c(a.size());
    products::MatmulArguments<float> product;
    product.m = product.n = product.k = n;
    product.a.view = {a.data(), n, 1};
    product.b.view = {b.data(), n, 1};
    product.c = {c.data(), n, 1};

    // The same with operands in 8 bits. Heads are items: their rows stand together.
    kernels::AttentionProductArguments<float> rounded;
    rounded.items = shape.batch * shape.heads;
    rounded.queries = rounded.keys = shape.length;
    rounded.depth = shape.depth;
    rounded.groups = shape.heads;
    rounded.causal = shape.causal;
    rounded.q = q.data();
    rounded.k = k.data();
    rounded.v = v.data();
    rounded.mult = 0.125f;
    rounded.slope = 0.125f;
    const kernels::AttentionOperand value{.quantiser = Quantiser{e4m3}}, gradient{.quantiser = Quantiser{e5m2}};
    rounded.logits_q = rounded.logits_k = rounded.probability_gradient_v = value;
    rounded.probability_gradient_dy = gradient;
    kernels::AttentionProductArguments<float> rounded_backward = rounded;
    rounded_backward.dout = dy.data();
    kernels::AttentionProductGradients<float> rounded_gradients;
    rounded_gradients.query_gradient_k = rounded_gradients.key_gradient_q = rounded_gradients.value_gradient_p = value;
    rounded_gradients.query_gradient_ds = rounded_gradients.key_gradient_ds = rounded_gradients.value_gradient_dy =
        gradient;
    rounded_gradients.dq = dq.data();
    rounded_gradients.dk = dk.data();
    rounded_gradients.dv = dv.data();

    const double seen = static_cast<double>(shape.causal ? shape.length * (shape.length + 1) / 2
                                                         : shape.length * shape.length),
                 one = 2e-9 * seen * static_cast<double>(shape.batch * row);
    std::vector<double> forward, backward, plain, together, forward_8, backward_8, together_8;
    for (int round = 0; round <= rounds; ++round) {
        const double f = seconds_of([&] { kernels::attention_forward(execution, args); });
        const double g = seconds_of([&] { kernels::attention_backward(execution, gradients); });
        const double p = seconds_of([&] { products::matmul(execution, product); });
        const double f8 = seconds_of(
            [&] { kernels::AttentionProducts<float>(execution, rounded).forward(value, value, 1.0f, out.data()); });
        const double g8 = seconds_of(
            [&] { kernels::AttentionProducts<float>(execution, rounded_backward).backward(rounded_gradients); });
        if (round == 0) continue;  // the first touches memory
        forward_8.push_back(2 * one / f8);
        backward_8.push_back(5 * one / g8);
        together_8.push_back(7 * one / (f8 + g8));
        forward.push_back(2 * one / f);
        backward.push_back(5 * one / g);
        together.push_back(7 * one / (f + g));
        plain.push_back(2e-9 * static_cast<double>(n * n * n) / p);
    }
    std::printf("%5td x %2td heads x %5td x %3td %-6s %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f\n", shape.batch,
                shape.heads, shape.length, shape.depth, shape.causal ? "causal" : "", median(forward), median(backward),
                median(together), median(forward_8), median(backward_8), median(together_8), median(plain));
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    int threads = 1, rounds = 15;
    CLI::App app(
        "Measures attention in FP32 and in 8 bits: 10^9 operations a second, of the products that causal queries "
        "need.");
    app.add_option("--threads", threads, "threads")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--rounds", rounds, "rounds; medians are printed")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    CLI11_PARSE(app, argc, argv);
    try {
        std::printf("kernels %s, caches %s, %d thread%s\n", std::string(name(active_isa())).c_str(),
                    text(active_caches()).c_str(), threads, threads == 1 ? "" : "s");
        std::printf("%-38s %26s %26s\n", "", "FP32", "E4M3, gradients E5M2");
        std::printf("%-38s %8s %8s %8s %8s %8s %8s %8s\n", "batch x heads x length x depth", "forward", "backward",
                    "together", "forward", "backward", "together", "product");
        for (const Sizes& shape : {Sizes{8, 4, 256, 64, true}, Sizes{4, 12, 256, 64, true}, Sizes{2, 4, 1024, 64, true},
                                   Sizes{1, 8, 1000, 64, false}, Sizes{4, 4, 128, 128, true}})
            measure(shape, threads, rounds);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
