// SPDX-License-Identifier: MIT
// Runs every family of kernels on fixed numbers and prints a line `<name> <checksum of the results>` for each. Builds
// for one instruction set print equal lines, whatever the compiler's options: compare.sh. Options that allow other
// mathematics, such as -ffast-math, are excepted.
#include <unitscale/analysis/statistics_kernels.hpp>
#include <unitscale/kernels/activations.hpp>
#include <unitscale/kernels/attention.hpp>
#include <unitscale/kernels/attention_products.hpp>
#include <unitscale/kernels/broadcast.hpp>
#include <unitscale/kernels/conv1d.hpp>
#include <unitscale/kernels/dropout.hpp>
#include <unitscale/kernels/embedding.hpp>
#include <unitscale/kernels/norms.hpp>
#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/kernels/rescale.hpp>
#include <unitscale/kernels/rotary.hpp>
#include <unitscale/kernels/round.hpp>
#include <unitscale/kernels/softmax.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/optim/lamb.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/optim/sgd.hpp>
#include <unitscale/products/limited_sums.hpp>
#include <unitscale/products/product.hpp>
#include <unitscale/tensor/coded_weight.hpp>
#include <unitscale/tensor/fill.hpp>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;
using namespace unitscale::products;

namespace {

/// Three threads: the work is cut with OpenMP, and not cut without it. The lines must be equal.
const Execution execution{.threads = 3};

/// Hides a number from the compiler. Otherwise the compiler would compute library functions of it, by other means than
/// the library.
template <class T>
T opaque(T x) {
    volatile T hidden = x;
    return hidden;
}

/// n numbers in [-2, 2): multiples of 2^-22, so that no rounding makes them.
template <class T = float>
std::vector<T> numbers(std::ptrdiff_t n, std::uint64_t stream) {
    std::vector<T> result(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < result.size(); ++i)
        result[i] = static_cast<T>(static_cast<std::int32_t>(random_word({11, stream}, i)) >> 8) * T(0x1p-22);
    return result;
}

/// FNV-1a of the bytes of all results since the last line.
std::uint64_t checksum = 0xCBF29CE484222325u;

template <class T>
void add(std::span<const T> results) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(results.data());
    for (std::size_t i = 0; i < results.size_bytes(); ++i) checksum = (checksum ^ bytes[i]) * 0x100000001B3u;
}
template <class T>
void add(const std::vector<T>& results) {
    add(std::span<const T>(results));
}
template <class T>
void add(const Tensor<T>& results) {
    add(results.span());
}
void add(double result) { add(std::span<const double>(&result, 1)); }

/// Prints the line of the results since the last line. The name is given as for printf.
[[gnu::format(printf, 1, 2)]] void print(const char* name, ...) {
    std::va_list arguments;
    va_start(arguments, name);
    std::vprintf(name, arguments);
    va_end(arguments);
    std::printf(" %016" PRIx64 "\n", checksum);
    checksum = 0xCBF29CE484222325u;
}
const char* text(Isa isa) { return name(isa).data(); }

std::vector<Isa> instruction_sets() {
    std::vector<Isa> all{Isa::baseline};
    for (const Isa isa : {Isa::avx2, Isa::avx512})
        if (isa <= active_isa()) all.push_back(isa);
    return all;
}

struct ProductSizes {
    std::ptrdiff_t m, n, k;
};

/// Products in all orientations, scaled, with bias and added to C. `round`: the quantiser of both operands, if any.
void products(Isa isa, PairKernel pairs, const char* path, const ProductSizes& s, const std::optional<Quantiser>& round,
              const char* rounding) {
    const auto a = numbers(s.m * s.k, 1), b = numbers(s.k * s.n, 2), bias = numbers(s.n, 3), rows = numbers(s.m, 4),
               cols = numbers(s.n, 5);
    const MatrixView<const float> left{a.data(), s.k, 1}, left_turned{a.data(), 1, s.m};
    const MatrixView<const float> right{b.data(), s.n, 1}, right_turned{b.data(), 1, s.k};
    auto c = numbers(s.m * s.n, 6);
    MatmulArguments<float> args{.m = s.m,
                                .n = s.n,
                                .k = s.k,
                                .a = {.quantiser = round, .key = {7, 1}},
                                .b = {.quantiser = round, .key = {7, 2}},
                                .c = {c.data(), s.n, 1}};
    for (const auto& [of_a, of_b] :
         {std::pair{left, right}, std::pair{left, right_turned}, std::pair{left_turned, right}}) {
        args.a.view = of_a, args.b.view = of_b;
        args.alpha = 0.3f, args.gamma = 0.7f, args.bias = bias.data(), args.row_scale = rows.data(),
        args.col_scale = cols.data();
        matmul_with(isa, execution, args, pairs);
        args.alpha = 1.1f, args.gamma = 0.0f, args.row_scale = nullptr, args.col_scale = nullptr;
        add(c);
        matmul_with(isa, execution, args, pairs);
        args.col_scale = cols.data();  // without a scale of rows: the last factor before the bias
        add(c);
        matmul_with(isa, execution, args, pairs);
        args.bias = nullptr, args.col_scale = nullptr;
        add(c);
        matmul_with(isa, execution, args, pairs);
        add(c);
    }
    print("matmul %tdx%tdx%td%s %s", s.m, s.n, s.k, rounding, path);
    if (args.b.is_stochastic()) return;
    const PackedRight<float> packed = pack_weights_with(isa, args, pairs);
    args.b.packed = &packed;
    matmul_with(isa, execution, args, pairs);
    add(c);
    print("matmul packed %tdx%tdx%td%s %s", s.m, s.n, s.k, rounding, path);
}

/// Weights kept as codes, for one row and for more: without scales, and in blocks.
void coded_products(Isa isa, PairKernel pairs, const char* path) {
    const std::ptrdiff_t most = 14, n = 70, k = 161;
    Tensor<float> weight({static_cast<std::size_t>(n), static_cast<std::size_t>(k)});
    const auto values = numbers(n * k, 1), a = numbers(most * k, 2);
    std::copy(values.begin(), values.end(), weight.data());
    std::vector<CodedWeight> weights;
    for (const FloatFormat& format : {fp32, fp16, bf16, e4m3, e3m2, e2m1})
        weights.push_back(coded_weight(weight, format));
    for (const BlockFormat& format : {mxfp8_e4m3, mxfp4, nvfp4, fp8_tile}) {
        BlockCodes codes;
        encode_blocks(
            format,
            {values.data(), static_cast<std::size_t>(n), static_cast<std::size_t>(k), static_cast<std::size_t>(k)},
            codes);
        weights.emplace_back(codes);
    }
    for (const bool rounds : {false, true})
        for (const CodedWeight& coded : weights)
            for (const std::ptrdiff_t m : {std::ptrdiff_t{1}, std::ptrdiff_t{5}, most}) {
                std::vector<float> c(static_cast<std::size_t>(m * n));
                MatmulArguments<float> args{
                    .m = m, .n = n, .k = k, .a = {.view = {a.data(), k, 1}}, .c = {c.data(), n, 1}};
                if (rounds) args.a.quantiser = Quantiser{.format = e4m3};
                args.b.weight = &coded;
                args.alpha = 0.3f;
                matmul_with(isa, execution, args, pairs);
                add(c);
            }
    print("coded weights %s", path);
}

/// Limited sums: their lines are equal for all instruction sets too.
void limited_products(Isa isa) {
    const std::ptrdiff_t m = 13, n = 50, k = 300;
    const auto a = numbers(m * k, 31), b = numbers(k * n, 32);
    Accumulate flushing{.sums = e5m2, .rounding = Rounding::toward_zero, .subnormals = false};
    for (const Accumulate& sums : {mptorch_sums(fp32), mptorch_sums(fp32, fp32), mptorch_sums(fp16, e5m2),
                                   mptorch_cuda_sums(bf16), flushing, hopper_sums_promoted, blackwell_sums}) {
        std::vector<float> c(static_cast<std::size_t>(m * n));
        limited_product_with(
            isa, execution, sums,
            {.m = m, .n = n, .k = k, .a = {a.data(), k, 1}, .b = {b.data(), n, 1}, .c = {c.data(), n, 1}});
        add(c);
    }
    print("limited sums %s", text(isa));
}

void all_products() {
    const Quantiser nearest{.format = e4m3}, five{.format = e5m2},
        stochastic{.format = e4m3, .rounding = Rounding::stochastic};
    for (const Isa isa : instruction_sets()) {
        for (const ProductSizes& s :
             {ProductSizes{37, 50, 65}, ProductSizes{1, 33, 129}, ProductSizes{3, 70, 31}, ProductSizes{130, 97, 600}})
            products(isa, PairKernel::none, text(isa), s, {}, "");
        for (const ProductSizes& s : {ProductSizes{37, 50, 65}, ProductSizes{2, 33, 70}}) {
            products(isa, PairKernel::none, text(isa), s, nearest, " e4m3");
            products(isa, PairKernel::none, text(isa), s, five, " e5m2");
            products(isa, PairKernel::none, text(isa), s, stochastic, " stochastic");
        }
        coded_products(isa, PairKernel::none, text(isa));
    }
    if (has_avx512_bf16()) coded_products(Isa::avx512, PairKernel::dot, "pairs");
    if (has_amx_bf16()) coded_products(Isa::avx512, PairKernel::matrix, "tiles");
    for (const Isa isa : instruction_sets())  // more columns and rows than a block has, of a k that is cut
        products(isa, PairKernel::none, text(isa), {150, 300, 1100}, {}, "");
    if (has_avx512_bf16()) products(Isa::avx512, PairKernel::dot, "pairs", {150, 300, 1100}, nearest, " e4m3");
    if (has_avx512_bf16()) products(Isa::avx512, PairKernel::dot, "pairs", {37, 50, 65}, nearest, " e4m3");
    if (has_amx_bf16()) products(Isa::avx512, PairKernel::matrix, "tiles", {37, 50, 65}, nearest, " e4m3");
}

void attention(Isa isa, std::ptrdiff_t queries, std::ptrdiff_t keys, bool causal) {
    constexpr std::ptrdiff_t batch = 2, heads = 4, groups = 2, depth = 24;
    const auto q = numbers(batch * queries * heads * depth, 1), k = numbers(batch * keys * groups * depth, 2),
               v = numbers(batch * keys * groups * depth, 3), dout = numbers(batch * queries * heads * depth, 4);
    std::vector<float> out(q.size()), log_sum(static_cast<std::size_t>(batch * heads * queries)), dq(q.size()),
        dk(k.size()), dv(v.size());
    const auto of_queries = [&]<class E>(E* data) {
        return AttentionView<E>{data, queries * heads * depth, heads * depth, depth};
    };
    const auto of_keys = [&]<class E>(E* data) {
        return AttentionView<E>{data, keys * groups * depth, groups * depth, depth};
    };
    AttentionGradients<float> all;
    all.forward = {.batch = batch, .heads = heads, .groups = groups, .queries = queries, .keys = keys, .depth = depth};
    all.forward.q = of_queries(q.data()), all.forward.k = of_keys(k.data()), all.forward.v = of_keys(v.data());
    all.forward.out = of_queries(out.data()), all.forward.log_sum = log_sum.data();
    all.forward.logit_scale = 0.3f, all.forward.out_scale = 1.7f, all.forward.causal = causal;
    all.dout = of_queries(dout.data()), all.dq = of_queries(dq.data()), all.dk = of_keys(dk.data()),
    all.dv = of_keys(dv.data());
    all.dq_scale = 0.9f, all.dk_scale = 1.1f, all.dv_scale = 1.3f;
    const char* const mask = causal ? "causal" : "whole";
    attention_forward_with(isa, execution, all.forward);
    add(out), add(log_sum);
    print("attention forward %tdx%td %s %s", queries, keys, mask, text(isa));
    attention_backward_with(isa, execution, all);
    add(dq), add(dk), add(dv);
    print("attention backward %tdx%td %s %s", queries, keys, mask, text(isa));
}

/// Attention whose operands are rounded to 8 bits, with the kernels in use.
void attention_products(std::ptrdiff_t queries, std::ptrdiff_t keys, bool causal) {
    constexpr std::ptrdiff_t items = 4, heads = 2, depth = 24;
    const auto q = numbers(items * heads * queries * depth, 1), k = numbers(items * keys * depth, 2),
               v = numbers(items * keys * depth, 3), dout = numbers(items * heads * queries * depth, 4);
    std::vector<float> out(q.size()), dq(q.size()), dk(k.size()), dv(v.size());
    AttentionProductArguments<float> all;
    all.items = items, all.heads = heads, all.groups = 2, all.queries = queries, all.keys = keys, all.depth = depth;
    all.causal = causal;
    all.q = q.data(), all.k = k.data(), all.v = v.data(), all.dout = dout.data();
    all.mult = 0.3f, all.probability_factor = 1.7f, all.slope = 0.3f, all.dlogit_factor = 1.1f;
    const AttentionOperand value{.quantiser = Quantiser{e4m3}}, gradient{.quantiser = Quantiser{e5m2}};
    all.logits_q = all.logits_k = all.probability_gradient_v = value;
    all.probability_gradient_dy = gradient;
    AttentionProductGradients<float> gradients;
    gradients.query_gradient_k = gradients.key_gradient_q = gradients.value_gradient_p = value;
    gradients.query_gradient_ds = gradients.key_gradient_ds = gradients.value_gradient_dy = gradient;
    gradients.dq = dq.data(), gradients.dk = dk.data(), gradients.dv = dv.data();
    AttentionProducts<float> run(execution, all);
    run.forward(value, value, 0.9f, out.data());
    run.backward(gradients);
    add(out), add(dq), add(dk), add(dv);
    print("attention products %tdx%td %s", queries, keys, causal ? "causal" : "whole");
}

template <class T>
void norms(const char* type, std::ptrdiff_t rows, std::ptrdiff_t n) {
    auto x = numbers<T>(rows * n, 1);
    const auto w = numbers<T>(n, 2), c = numbers<T>(n, 3), dy = numbers<T>(rows * n, 4);
    // The squares of the first row underflow.
    for (std::ptrdiff_t i = 0; i < n; ++i) x[static_cast<std::size_t>(i)] *= T(0x1p-80);
    std::vector<T> y(x.size()), dx(x.size()), dw(w.size()), dc(c.size());
    std::vector<Accum<T>> mean(static_cast<std::size_t>(rows)), inverse(mean.size());
    const NormGradients<T> to{
        .dx = dx.data(), .dw = dw.data(), .dc = dc.data(), .beta_x = T(0.9), .beta_w = T(1.1), .beta_c = T(0.7)};
    for (const bool gains : {true, false}) {
        const T* const gain = gains ? w.data() : nullptr;
        layer_norm_forward(execution, x.data(), gain, c.data(), y.data(), mean.data(), inverse.data(), rows, n);
        add(y), add(mean), add(inverse);
        layer_norm_backward(execution, x.data(), gain, dy.data(), mean.data(), inverse.data(), to, rows, n);
        add(dx), add(dw), add(dc);
        print("layer_norm %s %tdx%td%s", type, rows, n, gains ? " gains" : "");
        rms_norm_forward(execution, x.data(), gain, y.data(), inverse.data(), rows, n);
        add(y), add(inverse);
        rms_norm_backward(execution, x.data(), gain, dy.data(), inverse.data(), to, rows, n);
        add(dx), add(dw);
        print("rms_norm %s %tdx%td%s", type, rows, n, gains ? " gains" : "");
    }
}

template <class T>
void softmaxes(const char* type, std::ptrdiff_t rows, std::ptrdiff_t n) {
    const auto x = numbers<T>(rows * n, 1), dy = numbers<T>(rows * n, 2);
    std::vector<T> y(x.size()), dx(x.size());
    softmax_forward(execution, x.data(), y.data(), rows, n, T(1.3), T(0.7));
    softmax_backward(execution, y.data(), dy.data(), dx.data(), rows, n, T(1.3), T(0.7), T(1.1));
    add(y), add(dx);
    print("softmax %s %tdx%td", type, rows, n);
    log_softmax_forward(execution, x.data(), y.data(), rows, n, T(1.3), T(0.7));
    log_softmax_backward(execution, y.data(), dy.data(), dx.data(), rows, n, T(1.3), T(0.7), T(1.1));
    add(y), add(dx);
    print("log_softmax %s %tdx%td", type, rows, n);
    std::vector<std::int32_t> labels(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < labels.size(); ++i)
        labels[i] = i % 5 == 3 ? -1 : static_cast<std::int32_t>(random_word({1, 9}, i) % static_cast<std::uint32_t>(n));
    std::vector<T> log_sums(labels.size());
    add(static_cast<double>(
        softmax_cross_entropy_forward(execution, x.data(), labels.data(), log_sums.data(), rows, n, T(1.3), -1)));
    softmax_cross_entropy_backward(execution, x.data(), labels.data(), log_sums.data(), dx.data(), rows, n, T(1.3),
                                   T(0.9), -1);
    add(log_sums), add(dx);
    print("softmax_cross_entropy %s %tdx%td", type, rows, n);
}

void reductions(std::ptrdiff_t rows, std::ptrdiff_t n) {
    const auto x = numbers(rows * n, 1);
    std::vector<float> columns(static_cast<std::size_t>(n)), sums(static_cast<std::size_t>(rows));
    column_sums(execution, x.data(), columns.data(), rows, n, 0.3f);
    row_sums(execution, x.data(), sums.data(), rows, n, 0.3f);
    add(columns), add(sums);
    for (const double result :
         {static_cast<double>(sum(execution, x.data(), rows * n)),
          static_cast<double>(mean(execution, x.data(), rows * n)), square_norm(execution, x.data(), rows * n),
          data_norm(execution, DataNorm::l1, x.data(), rows * n),
          data_norm(execution, DataNorm::l2, x.data(), rows * n),
          data_norm(execution, DataNorm::max, x.data(), rows * n)})
        add(result);
    print("reduce %tdx%td", rows, n);
}

void activations(std::ptrdiff_t n) {
    const auto x = numbers(n, 1), g = numbers(n, 2), dy = numbers(n, 3);
    std::vector<float> y(x.size()), dx(x.size()), dg(x.size());
    const auto both = [&](const char* what, auto forward, auto backward) {
        for (const float m : {0.8f, 3.7f}) {  // a multiplier above 1 takes a separate path
            forward(m);
            backward(m);
            add(y), add(dx), add(dg);
        }
        print("%s %td", what, n);
    };
    both(
        "gelu", [&](float m) { gelu_forward(execution, x.data(), y.data(), n, m, 1.3f); },
        [&](float m) { gelu_backward(execution, x.data(), dy.data(), dx.data(), n, m, 0.7f); });
    both(
        "gelu_tanh", [&](float m) { gelu_tanh_forward(execution, x.data(), y.data(), n, m, 1.3f); },
        [&](float m) { gelu_tanh_backward(execution, x.data(), dy.data(), dx.data(), n, m, 0.7f); });
    both(
        "silu", [&](float m) { silu_forward(execution, x.data(), y.data(), n, m, 1.3f); },
        [&](float m) { silu_backward(execution, x.data(), dy.data(), dx.data(), n, m, 0.7f); });
    both(
        "gated_silu", [&](float m) { gated_silu_forward(execution, x.data(), g.data(), y.data(), n, m, 1.3f); },
        [&](float m) {
            gated_silu_backward(execution, x.data(), g.data(), dy.data(), dx.data(), dg.data(), n, m, 0.7f);
        });
    both(
        "relu", [&](float) { relu_forward(execution, x.data(), y.data(), n, 1.3f); },
        [&](float) { relu_backward(execution, x.data(), dy.data(), dx.data(), n, 0.7f); });
}

void pointwise(std::ptrdiff_t n) {
    const auto x = numbers(n, 1), dy = numbers(n, 2);
    std::vector<float> positive(x), y(x.size()), dx(x.size());
    for (float& v : positive) v = std::abs(v) + 0x1p-22f;
    const auto both = [&](const char* what, const std::vector<float>& from, auto f) {
        pointwise_forward(execution, from.data(), y.data(), n, f, 1.3f);
        pointwise_backward(execution, from.data(), dy.data(), dx.data(), n, f, 0.7f);
        add(y), add(dx);
        print("%s %td", what, n);
    };
    both("tanh", x, TanhFunction{});
    both("sigmoid", x, SigmoidFunction{});
    both("exp", x, ExpFunction{});
    both("log", positive, LogFunction{});
    both("rsqrt", positive, RsqrtFunction{});
    both("square", x, SquareFunction{});
    both("pow", positive, PowFunction<double>{opaque(1.7)});
}

void element_wise(std::ptrdiff_t n) {
    const auto u = numbers(n, 1), v = numbers(n, 2), w = numbers(n, 3);
    std::vector<float> y(u.size());
    add_scaled(execution, u.data(), 0.3f, v.data(), 0.7f, y.data(), n);
    add(y);
    multiply(execution, u.data(), v.data(), y.data(), n, 0.3f);
    add(y);
    const float* const inputs[] = {u.data(), v.data(), w.data()};
    const float weights[] = {0.3f, 0.7f, -1.1f};
    weighted_sum<float>(execution, inputs, weights, y.data(), n);
    add(y);
    print("elementwise %td", n);
    dropout(execution, u.data(), y.data(), n, 0.3, {5, 6}, 0.9f);
    add(y);
    print("dropout %td", n);
    rescale(execution, u.data(), y.data(), n, 3.0, 0.7);
    add(y);
    print("rescale %td", n);
    for (const Quantiser& round :
         {Quantiser{.format = e4m3}, Quantiser{.format = e5m2, .rounding = Rounding::stochastic}}) {
        round_elements(execution, "round", round, {5, 7}, u.data(), y.data(), n);
        add(y);
    }
    print("round %td", n);
}

void broadcasts() {
    const auto u = numbers(13 * 37, 1), v = numbers(37, 2), c = numbers(13, 3), dy = numbers(5 * 13 * 37, 4);
    std::vector<float> y(5 * 13 * 37), dx(13 * 37);
    broadcast_add(execution, u.data(), {13, 37}, 0.3f, v.data(), {37}, 0.7f, y.data());
    add(y);
    broadcast_add(execution, c.data(), {13, 1}, 0.3f, v.data(), {37}, 0.7f, y.data());
    add(y);
    sum_to_shape(execution, dy.data(), {5, 13, 37}, dx.data(), {13, 37}, 0.3f);
    add(dx);
    sum_to_shape(execution, dy.data(), {5, 13, 37}, dx.data(), {13, 1}, 0.3f);
    add(dx);
    const auto squares = [](float a, float b) { return multiply_add(a, a, b * b); };
    const Shape shape{13, 37}, row{37};
    broadcast_map_sum(execution, shape, dx.data(), row, squares, BroadcastInput{u.data(), shape},
                      BroadcastInput{v.data(), row});
    add(dx);
    print("broadcast");
}

void embeddings() {
    constexpr std::ptrdiff_t n = 90, vocabulary = 21, d = 37;
    std::vector<std::int32_t> ids(n);
    for (std::size_t i = 0; i < ids.size(); ++i)
        ids[i] = static_cast<std::int32_t>(random_word({1, 8}, i) % vocabulary);
    const auto table = numbers(vocabulary * d, 1), dy = numbers(n * d, 2);
    std::vector<float> y(dy.size()), dtable(table.size());
    embedding_forward(execution, table.data(), ids.data(), y.data(), n, d, 0.3f);
    embedding_backward(execution, dy.data(), ids.data(), dtable.data(), n, vocabulary, d, 0.7f);
    add(y), add(dtable);
    print("embedding");
}

void convolutions(std::ptrdiff_t groups, std::ptrdiff_t stride) {
    const Conv1dShape s{.batch = 2,
                        .in_channels = 6,
                        .length = 43,
                        .out_channels = 8,
                        .out_length = (43 + 2 - 3) / stride + 1,
                        .taps = 3,
                        .stride = stride,
                        .left = 1,
                        .groups = groups};
    const auto x = numbers(s.x_size(), 1), w = numbers(s.weight_size(), 2), bias = numbers(s.out_channels, 3),
               dy = numbers(s.y_size(), 4);
    std::vector<float> y(dy.size()), dx(x.size()), dw(w.size()), db(bias.size());
    const Operand<float> of_x{{x.data()}}, of_w{{w.data()}}, of_dy{{dy.data()}};
    conv1d_forward(execution, s, of_x, of_w, bias.data(), y.data(), 0.3f);
    conv1d_backward_x(execution, s, of_dy, of_w, dx.data(), 0.7f);
    conv1d_backward_weight(execution, s, of_dy, of_x, dw.data(), 1.1f);
    conv1d_backward_bias(execution, s, dy.data(), db.data(), 0.9f);
    add(y), add(dx), add(dw), add(db);
    print("conv1d groups %td stride %td", groups, stride);
}

void rotary(std::ptrdiff_t first_position) {
    const RotarySizes sizes{.batch = 2,
                            .time = 70,
                            .heads = 3,
                            .width = opaque(std::ptrdiff_t{38}),
                            .first_position = first_position,
                            .base = opaque(10000.0)};
    const HeadStrides strides{sizes.time * sizes.heads * sizes.width, sizes.heads * sizes.width, sizes.width};
    const auto x = numbers(sizes.batch * strides.batch_stride, 1);
    std::vector<float> y(x.size());
    rotary_forward(execution, x.data(), strides, y.data(), strides, sizes, 0.3f);
    add(y);
    rotary_backward(execution, x.data(), strides, y.data(), strides, sizes, 0.7f);
    add(y);
    print("rotary from %td", first_position);
}

/// Three updates by each optimiser, at the rates of a schedule.
template <class T>
void optimisers(const char* type, std::ptrdiff_t n) {
    const auto size = static_cast<std::size_t>(n);
    const optim::Schedule schedule{.kind = optim::ScheduleKind::cosine, .peak = 0.01, .steps = 3, .warmup = 1};
    for (const bool penalty : {false, true}) {
        auto p = numbers<T>(n, 1), q = p;
        std::vector<T> m(size), v(size), velocity(size);
        for (std::uint64_t step = 1; step <= 3; ++step) {
            const auto gradient = numbers<T>(n, 1 + step);
            const double rate = schedule.at(step);
            optim::AdamConstants<T> adam = optim::adam_constants<T>(optim::AdamOptions{}, step, 0.3);
            adam.penalty = penalty ? T(0.1) : T(0);
            adam.keep = static_cast<T>(optim::kept_share(WeightDecay::coupled, 0.1, rate, 1.0));
            adam.rate = static_cast<T>(rate);
            if constexpr (std::is_same_v<T, float>) {
                optim::StoredTensor<float> first(Shape{size}, {}), second(Shape{size}, {});
                const optim::StoredUpdate<float> update{
                    .weights = p.data(), .gradient = gradient.data(), .size = size, .first = &first, .second = &second};
                const optim::LambNorms norms = optim::lamb_norms<float>(execution, update, adam, 0.7);
                add(norms.value), add(norms.update);
            }
            optim::adam_update<T>(execution, p.data(), gradient.data(), m.data(), v.data(), size, adam);
            const optim::SgdConstants<T> sgd{.gradient_scale = T(0.3),
                                             .penalty = adam.penalty,
                                             .momentum = T(0.9),
                                             .from_gradient = adam.rate,
                                             .from_velocity = adam.rate * T(0.9),
                                             .keep = adam.keep};
            optim::sgd_update<T>(execution, q.data(), gradient.data(), velocity.data(), size, sgd);
            add(p), add(m), add(v), add(q), add(velocity);
            add(optim::sum_of_squares(p.data(), n));
        }
    }
    print("optimisers %s %td", type, n);
}

template <class T>
void fills(const char* type) {
    Tensor<T> tensor(Shape{1003});
    fill_normal(tensor, {3, 1}, 0.7);
    add(tensor);
    fill_truncated_normal(tensor, {3, 2}, 0.7);
    add(tensor);
    fill_uniform(tensor, {3, 3}, -0.3, 0.7);
    add(tensor);
    add(arange<T>(1003, 0.1, 0.3));
    print("fill %s", type);
}

/// Formats by the loops of one instruction set.
void formats(Isa isa) {
    const auto x = numbers(5003, 1);
    std::vector<float> y(x.size());
    for (const FloatFormat& format : {e4m3, e5m2, bf16, fp16, e2m1})
        for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
            quantise_span(isa, format, x, y, {.rounding = rounding, .key = {9, 9}});
            add(y);
        }
    print("quantise %s", text(isa));
}

/// The sums of tensor statistics.
template <Isa isa>
void statistics() {
    const auto x = numbers(analysis::statistics_block, 1), y = numbers(analysis::statistics_block, 2);
    std::vector<std::uint8_t> fields(x.size());
    for (const bool quick : {true, false}) {
        analysis::BlockScan found;
        if (quick) static_cast<void>(analysis::BlockKernels<isa>::quick_scan(x.data(), found));
        else analysis::BlockKernels<isa>::scan(x.data(), fields.data(), found);
        add(found.sum), add(found.squares);
    }
    add(analysis::BlockKernels<isa>::distance(x.data(), y.data()));
    print("statistics %s", text(isa));
}

}  // namespace

int main() {
    all_products();
    for (const Isa isa : instruction_sets()) {
        attention(isa, 1, 45, true);
        attention(isa, 33, 45, true);
        attention(isa, 70, 70, false);
        formats(isa);
        limited_products(isa);
    }
    attention_products(1, 45, true);
    attention_products(70, 70, true);
    attention_products(33, 40, false);
    statistics<Isa::baseline>();
#if UNITSCALE_X86
    if (active_isa() >= Isa::avx2) statistics<Isa::avx2>();
    if (active_isa() >= Isa::avx512) statistics<Isa::avx512>();
#endif
    for (const std::ptrdiff_t n : {5, 64, 421}) {
        norms<float>("float", 7, n);
        softmaxes<float>("float", 7, n);
    }
    norms<double>("double", 7, 421);
    softmaxes<double>("double", 7, 421);
    norms<float>("float", 300, 130);
    softmaxes<float>("float", 300, 130);
    reductions(7, 5);
    reductions(401, 131);
    for (const std::ptrdiff_t n : {7, 421, 40003}) {
        activations(n);
        pointwise(n);
        element_wise(n);
    }
    broadcasts();
    embeddings();
    convolutions(1, 1);
    convolutions(2, 2);
    rotary(0);
    rotary(100);
    optimisers<float>("float", 421);
    optimisers<float>("float", 40003);
    optimisers<double>("double", 421);
    fills<float>("float");
    fills<double>("double");
}
