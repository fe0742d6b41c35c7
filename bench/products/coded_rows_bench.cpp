// SPDX-License-Identifier: MIT
// Products of one row, and of eight, with weights that come from memory: elements and codes, beside Eigen's
// matrix-vector product in FP32 and oneDNN's FP32 product. See --help.
#include <unitscale/base/cpu.hpp>
#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/products/product.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/train/code_weights.hpp>

#include "measure.hpp"
#include "product_peers.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::bench;
using namespace unitscale::products;

namespace {

struct Contender {
    std::string name{};
    std::size_t bytes = 0;  ///< of all weights
    std::function<void()> run{};
    std::vector<double> seconds{};
};

struct Layer {
    std::ptrdiff_t out, in;
};

/// Times all contenders of a layer in turn, `rounds` times, each over as many copies of the weight as leave the caches.
void measure(const Layer& layer, std::ptrdiff_t rows, int threads, std::size_t rounds, std::size_t megabytes) {
    const auto out = static_cast<std::size_t>(layer.out), in = static_cast<std::size_t>(layer.in);
    const std::size_t copies = std::max<std::size_t>(1, (megabytes << 20) / (out * in * sizeof(float)));
    Tensor<float> weight({out, in}), x({static_cast<std::size_t>(rows), in}), y({static_cast<std::size_t>(rows), out});
    fill_normal(weight, {.seed = 1, .stream = 1}, 0.02);
    fill_normal(x, {.seed = 1, .stream = 2});
    const std::vector<Tensor<float>> elements(copies, weight);
    std::vector<Contender> all;

    const Isa isa = active_isa();
    bench::EigenProduct* const eigen = isa == Isa::avx512 ? bench::eigen_product_avx512
                                       : isa == Isa::avx2 ? bench::eigen_product_avx2
                                                          : bench::eigen_product_baseline;
    const bench::Problem problem{.m = rows, .n = layer.out, .k = layer.in, .b_transposed = true};
    all.push_back({"Eigen fp32", copies * out * in * 4, [&] {
                       for (const Tensor<float>& w : elements) eigen(problem, x.data(), w.data(), y.data(), threads);
                   }});
#if UNITSCALE_BENCH_ONEDNN
    std::vector<bench::Product> products;
    for (const Tensor<float>& w : elements)
        products.push_back(bench::onednn_product(problem, x.data(), w.data(), y.data(), threads, false));
    all.push_back({"oneDNN fp32", copies * out * in * 4, [&] {
                       for (const bench::Product& product : products) product();
                   }});
#endif
    const auto multiply = [&](const Operand<float>& b, bool rounds_x) {
        MatmulArguments<float> product{.m = rows, .n = layer.out, .k = layer.in, .b = b, .c = {y.data(), layer.out, 1}};
        product.a.view = {x.data(), layer.in, 1};
        if (rounds_x) product.a.quantiser = Quantiser{.format = e4m3};
        matmul<float>({.threads = threads}, product);
    };
    all.push_back({"elements fp32", copies * out * in * 4, [&] {
                       for (const Tensor<float>& w : elements) multiply({.view = {w.data(), 1, layer.in}}, false);
                   }});
    struct Form {
        const char* format;
        bool rounds_x;
    };
    const std::vector<Form> forms = {{"fp32", false}, {"fp16", false},       {"bf16", false}, {"e4m3", false},
                                     {"e4m3", true},  {"mxfp8_e4m3", false}, {"e2m1", false}, {"mxfp4", false},
                                     {"mxfp4", true}, {"nvfp4", false},      {"nvfp4", true}};
    std::vector<std::vector<CodedWeight>> codes;
    codes.reserve(forms.size());
    for (const Form& form : forms) {
        const CodedWeight coded = train::encode_weight(weight, train::weight_code_rule(form.format));
        codes.emplace_back(copies, coded);
        all.push_back({std::string("codes ") + form.format + (form.rounds_x ? ", x e4m3" : ""), copies * coded.bytes(),
                       [&multiply, &form, &held = codes.back()] {
                           for (const CodedWeight& w : held)
                               multiply({.weight = &w, .weight_apart = active_pair_kernel() != PairKernel::none},
                                        form.rounds_x);
                       }});
    }
    for (std::size_t round = 0; round < rounds; ++round)
        for (Contender& contender : all) contender.seconds.push_back(seconds_of(contender.run));

    std::printf("\n%td x %td, %td row%s, %d thread%s, %zu weights in turn\n", layer.out, layer.in, rows,
                rows == 1 ? "" : "s", threads, threads == 1 ? "" : "s", copies);
    std::printf("%-24s %12s %8s %14s\n", "weights", "10^9/s", "GB/s", "to Eigen fp32");
    for (const Contender& contender : all) {
        std::vector<double> ratios;
        for (std::size_t i = 0; i < rounds; ++i) ratios.push_back(all[0].seconds[i] / contender.seconds[i]);
        const double seconds = median(contender.seconds), count = static_cast<double>(copies * out * in);
        std::printf("%-24s %12.2f %8.1f %14.2f\n", contender.name.c_str(), 1e-9 * count / seconds,
                    1e-9 * static_cast<double>(contender.bytes) / seconds, median(ratios));
    }
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    std::vector<std::size_t> widths = {768, 2048};
    std::vector<std::ptrdiff_t> rows = {1, 8};
    std::size_t rounds = 5, megabytes = 256;
    int threads = 1;
    CLI::App app(
        "Measures products of few rows with weights from memory: how many weights a second, and how many times Eigen's "
        "FP32. Medians of rounds in turn.");
    app.add_option("--widths", widths, "of square layers")->delimiter(',')->capture_default_str();
    app.add_option("--rows", rows, "rows of x")->delimiter(',')->capture_default_str();
    app.add_option("--threads", threads, "threads")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--rounds", rounds, "rounds")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--megabytes", megabytes, "of FP32 weights that are read in turn")->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    for (const std::size_t width : widths)
        for (const std::ptrdiff_t m : rows)
            measure({static_cast<std::ptrdiff_t>(width), static_cast<std::ptrdiff_t>(width)}, m, threads, rounds,
                    megabytes);
    return 0;
}
