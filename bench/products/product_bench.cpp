// SPDX-License-Identifier: MIT
// GFLOP/s (2 m n k / time) of the product kernel in every precision, beside Eigen and, where the build found them,
// OpenBLAS and oneDNN. Ratios of related results follow. `bash bench/matmul.sh` builds and runs it. Google Benchmark
// runs one benchmark after the other. On a machine with a clock or neighbours that change within the minute, the ratios
// would include that change. So this program has its own loop: all contenders of a shape in turn, again and again, in
// another order each time. A host may slow its machines down at intervals, which would meet the same contender each
// time. A ratio is the median of the ratios of times from one round. With one thread, times are processor times of this
// process. With more threads they are wall-clock times.
#include "measure.hpp"
#include "product_peers.hpp"

#include <unitscale/base/huge_pages.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/kernels/coding.hpp>
#include <unitscale/kernels/round_blocks.hpp>
#include <unitscale/products/operand.hpp>
#include <unitscale/products/product.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace unitscale;
using bench::median;
using namespace unitscale::kernels;
using namespace unitscale::products;
using bench::Problem;
using bench::Product;

namespace {

struct Settings {
    int threads = 1, rounds = 5;
    double seconds = 0.03;  ///< least duration of one measurement
    bool quick = false;
    std::string json, only;
};

struct Shape {
    std::string name;
    Problem problem;
    /// The kind selects the ratios below that are measured for the shape.
    enum Kind { square, layer, heads, few_rows } kind;
};

std::vector<Shape> shapes(bool quick) {
    if (quick)
        return {{"256", {256, 256, 256}, Shape::square},
                {"m=4 k=256 n=256", {4, 256, 256, 1, false, true}, Shape::few_rows}};
    std::vector<Shape> all;
    for (const std::ptrdiff_t n : {256, 512, 768, 1024, 1536, 2048})
        all.push_back({std::to_string(n), {n, n, n}, Shape::square});
    // A transformer of width 256 on 2048 rows: y = x w^T, dx = dy w, dw = dy^T x.
    for (const auto& [name, in, out] :
         {std::tuple{"qkv", 256, 768}, {"out", 256, 256}, {"up", 256, 1024}, {"down", 1024, 256}}) {
        all.push_back({concatenate(name, " y"), {2048, out, in, 1, false, true}, Shape::layer});
        all.push_back({concatenate(name, " dx"), {2048, in, out}, Shape::layer});
        all.push_back({concatenate(name, " dw"), {out, in, 2048, 1, true, false}, Shape::layer});
    }
    all.push_back({"wide y", {2048, 2048, 256, 1, false, true}, Shape::layer});
    // 32 heads of 64, 256 positions: scores, their product with the values, and dv.
    all.push_back({"heads q k^T", {256, 256, 64, 32, false, true}, Shape::heads});
    all.push_back({"heads p v", {256, 64, 256, 32}, Shape::heads});
    all.push_back({"heads p^T dy", {256, 64, 256, 32, true, false}, Shape::heads});
    for (const std::ptrdiff_t m : {1, 4, 8})
        all.push_back({concatenate("m=", m, " k=1024 n=1024"), {m, 1024, 1024, 1, false, true}, Shape::few_rows});
    all.push_back({"m=16 k=1024 n=1024 dx", {16, 1024, 1024}, Shape::few_rows});  // B is row-major, and packed
    return all;
}

/// The operands of a shape in each storage type.
template <class T>
struct Operands {
    std::vector<T, PoolAllocator<T>> a, b, c;  ///< aligned to 64 bytes, as tensors are

    explicit Operands(const Problem& p)
        : a(static_cast<std::size_t>(p.a_size() * p.batch)),
          b(static_cast<std::size_t>(p.b_size() * p.batch)),
          c(static_cast<std::size_t>(p.c_size() * p.batch)) {
        fill(a, 1);
        fill(b, 2);
    }
    static void fill(std::vector<T, PoolAllocator<T>>& values, std::uint64_t stream) {  // uniform, of variance 1
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] =
                element_cast<T>((static_cast<float>(random_word({1, stream}, i)) - 0x1p31f) * 0x1p-31f * 1.732f);
    }
};

template <class T>
MatmulArguments<T> arguments(const Problem& p, Operands<T>& data, bool scaled, const std::optional<Quantiser>& a,
                             const std::optional<Quantiser>& b) {
    MatmulArguments<T> args;
    args.m = p.m, args.n = p.n, args.k = p.k, args.batch = p.batch;
    args.a = {{data.a.data(), p.a_transposed ? 1 : p.k, p.a_transposed ? p.m : 1, p.a_size()}, a};
    args.b = {{data.b.data(), p.b_transposed ? 1 : p.n, p.b_transposed ? p.k : 1, p.b_size()}, b};
    args.c = {data.c.data(), p.n, 1, p.c_size()};
    if (scaled) args.alpha = static_cast<Accum<T>>(1.0 / std::sqrt(static_cast<double>(p.k)));
    return args;
}

struct Contender {
    std::string name;
    Product run;
    std::ptrdiff_t repeats = 1;
    std::vector<double> times{};  ///< seconds of one product, by round
};

/// Float operands as codes of a format.
struct Codes {
    std::vector<std::uint8_t> a, b;
    CodedMatrix coded_a, coded_b;

    Codes(const Operands<float>& from, const MatmulArguments<float>& args, const FloatFormat& format)
        : a(from.a.size()), b(from.b.size()) {
        encode({}, from.a.data(), a.data(), static_cast<std::ptrdiff_t>(a.size()), {.format = format});
        encode({}, from.b.data(), b.data(), static_cast<std::ptrdiff_t>(b.size()), {.format = format});
        const MatrixView<const float>&of_a = args.a.view, &of_b = args.b.view;
        coded_a = {{a.data(), of_a.row_stride, of_a.col_stride, of_a.batch_stride}, format};
        coded_b = {{b.data(), of_b.row_stride, of_b.col_stride, of_b.batch_stride}, format};
    }
    Codes(const Codes&) = delete;
};

/// All contenders that multiply this shape.
struct Field {
    Operands<float> floats;
    Operands<Half> halves;
    Operands<BFloat16> bfloats;
    Operands<float> rounded;       ///< of the separate pass
    std::unique_ptr<Codes> codes;  ///< in e4m3
    std::vector<Contender> contenders;

    Field(const Problem& p, const Execution& execution) : floats(p), halves(p), bfloats(p), rounded(p) {
        const Quantiser e4{.format = e4m3}, e5{.format = e5m2};
        const auto ours = [&]<class T>(const char* name, Operands<T>& data, bool scaled,
                                       const std::optional<Quantiser>& a, const std::optional<Quantiser>& b, Isa isa,
                                       PairKernel pairs) {
            const auto args = arguments(p, data, scaled, a, b);
            contenders.push_back({name, [=] { matmul_with(isa, execution, args, pairs); }});
        };
        const Isa isa = active_isa();
        const PairKernel pairs = active_pair_kernel();
        ours("fp32", floats, false, {}, {}, isa, pairs);
        ours("fp32 scaled", floats, true, {}, {}, isa, pairs);
        ours("fp16", halves, false, {}, {}, isa, pairs);
        ours("fp16 scaled", halves, true, {}, {}, isa, pairs);
        ours("bf16", bfloats, false, {}, {}, isa, pairs);
        ours("bf16 scaled", bfloats, true, {}, {}, isa, pairs);
        ours("e4m3", floats, false, e4, e4, isa, pairs);
        ours("e4m3 scaled", floats, true, e4, e4, isa, pairs);
        ours("e4m3 e5m2", floats, true, e4, e5, isa, pairs);
        ours("e5m2 e4m3", floats, true, e5, e4, isa, pairs);
        ours("e5m2 e5m2", floats, true, e5, e5, isa, pairs);
        if (has_avx512_bf16()) ours("e4m3 dot", floats, true, e4, e4, Isa::avx512, PairKernel::dot);
        if (isa == Isa::avx512) ours("e4m3 avx512", floats, true, e4, e4, Isa::avx512, PairKernel::none);
        if (isa >= Isa::avx2) ours("e4m3 avx2", floats, true, e4, e4, Isa::avx2, PairKernel::none);

        if constexpr (uses_blas) {  // whether it pays or not
            const auto args = arguments(p, floats, true, {}, {});
            contenders.push_back({"fp32 by BLAS", [=] { matmul_blas(execution, args); }});
        }
        const auto floats_args = arguments(p, floats, true, e4, e4);
        codes = std::make_unique<Codes>(floats, floats_args, e4m3);
        const auto coded = [&](const char* name, bool of_a, bool of_b, Isa with, PairKernel kernel) {
            MatmulArguments<float> args = floats_args;
            if (of_a) args.a = {.codes = codes->coded_a};
            if (of_b) args.b = {.codes = codes->coded_b};
            contenders.push_back({name, [=] { matmul_with(with, execution, args, kernel); }});
        };
        coded("e4m3 codes of b", false, true, isa, pairs);
        coded("e4m3 codes of a", true, false, isa, pairs);
        coded("e4m3 codes of both", true, true, isa, pairs);
        if (isa == Isa::avx512) coded("e4m3 codes of b avx512", false, true, Isa::avx512, PairKernel::none);
        if (isa >= Isa::avx2) coded("e4m3 codes of b avx2", false, true, Isa::avx2, PairKernel::none);

        // Blocks along k, quantised in every call.
        const auto blocks = [&](const char* name, const BlockFormat& of_a, const BlockFormat& of_b) {
            const bool apart = usable_pairs<float>(pairs, true, true) != PairKernel::none;
            contenders.push_back({name, [=, this] {
                                      const auto quantised = [&](const BlockFormat& format, const auto& from, auto& to,
                                                                 bool along_rows, std::ptrdiff_t lines) {
                                          const Contracted way = along_rows ? Contracted::rows : Contracted::columns;
                                          const RoundedBlocks facts = round_blocks<float>(
                                              execution, format, {.tensor_apart = apart}, {}, from.data(), to.data(),
                                              along_rows ? p.k : lines, along_rows ? lines : p.k, way);
                                          MatrixView<const float> view{to.data(), p.k, 1};
                                          if (along_rows && !facts.transposed) view = {to.data(), 1, lines};
                                          return QuantisedNumbers<float>{view, facts.exact_in_bf16, facts.factor};
                                      };
                                      MatmulArguments<float> args = arguments(p, floats, true, {}, {});
                                      args.a.numbers = quantised(of_a, floats.a, rounded.a, p.a_transposed, p.m);
                                      args.b.numbers = quantised(of_b, floats.b, rounded.b, !p.b_transposed, p.n);
                                      args.b.numbers->view = args.b.numbers->view.transposed();
                                      matmul_with(isa, execution, args, pairs);
                                  }});
        };
        if (p.batch == 1) {
            BlockFormat mxfp8 = mxfp8_e4m3;
            mxfp8.exponent = ExponentRounding::rceil;
            blocks("mxfp8", mxfp8, mxfp8);
            blocks("nvfp4", nvfp4, nvfp4_square);
            blocks("fp8 tiles", fp8_tile, fp8_square);
        }

        const auto product = arguments(p, rounded, true, {}, {});
        contenders.push_back({"two passes", [=, this] {
                                  quantise(e4m3, std::span<const float>(floats.a), std::span<float>(rounded.a));
                                  quantise(e4m3, std::span<const float>(floats.b), std::span<float>(rounded.b));
                                  matmul(execution, product);
                              }});
        const float *a = floats.a.data(), *b = floats.b.data();
        float* const c = floats.c.data();
        const int threads = execution.threads;
        const auto eigen = [&](const char* name, bench::EigenProduct* run) {
            contenders.push_back({name, [=] { run(p, a, b, c, threads); }});
        };
#if UNITSCALE_X86
        if (isa == Isa::avx512) eigen("Eigen avx512", bench::eigen_product_avx512);
        if (isa >= Isa::avx2) eigen("Eigen avx2", bench::eigen_product_avx2);
#endif
        if (isa == Isa::baseline) eigen("Eigen baseline", bench::eigen_product_baseline);
#if UNITSCALE_BENCH_OPENBLAS
        contenders.push_back({"OpenBLAS", bench::openblas_product(p, a, b, c, threads)});
#endif
#if UNITSCALE_BENCH_ONEDNN
        for (const bool bf16 : {false, true})
            if (Product run = bench::onednn_product(p, a, b, c, threads, bf16))
                contenders.push_back({bf16 ? "oneDNN bf16" : "oneDNN f32", std::move(run)});
#endif
    }
    Field(const Field&) = delete;
};

double now(int threads) {
    if (threads == 1) {
        std::timespec time{};
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
        return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double seconds_of(const Contender& contender, std::ptrdiff_t repeats, int threads) {
    const double begin = now(threads);
    for (std::ptrdiff_t i = 0; i < repeats; ++i) {
        contender.run();
        benchmark::ClobberMemory();
    }
    return (now(threads) - begin) / static_cast<double>(repeats);
}

void measure(std::vector<Contender>& contenders, const Settings& settings) {
    for (Contender& contender : contenders) {
        seconds_of(contender, 1, settings.threads);  // warms buffers and code
        const double once = seconds_of(contender, 2, settings.threads);
        contender.repeats = static_cast<std::ptrdiff_t>(std::clamp(settings.seconds / std::max(once, 1e-8), 1.0, 1e6));
    }
    std::vector<Contender*> order;
    for (Contender& contender : contenders) order.push_back(&contender);
    std::mt19937 random(1);
    for (int round = 0; round < settings.rounds; ++round) {
        std::shuffle(order.begin(), order.end(), random);
        for (Contender* const contender : order)
            contender->times.push_back(seconds_of(*contender, contender->repeats, settings.threads));
    }
}

/// Speed of `ours` as a multiple of the speed of `peer`.
struct Ratio {
    const char* ours;
    const char* peer;  ///< "Eigen": compiled for the widest instruction set that is measured
    double aim;        ///< 0: no aim
    unsigned kinds;
};
constexpr unsigned of(Shape::Kind kind) { return 1u << kind; }
constexpr unsigned anywhere = of(Shape::square) | of(Shape::layer) | of(Shape::heads) | of(Shape::few_rows);
constexpr Ratio ratios[] = {{"e4m3 scaled", "OpenBLAS", 1.8, of(Shape::square)},
                            {"e4m3 scaled", "oneDNN bf16", 0.85, of(Shape::square)},
                            {"e4m3 scaled", "Eigen avx512", 2.0, of(Shape::layer)},
                            {"e4m3 scaled", "Eigen avx512", 1.6, of(Shape::heads)},
                            {"e4m3 scaled", "Eigen avx512", 0, of(Shape::square) | of(Shape::few_rows)},
                            {"fp32 scaled", "Eigen", 0.97, anywhere},
                            {"fp16 scaled", "Eigen", 0.97, anywhere},
                            {"fp32 scaled", "OpenBLAS", 0.97, anywhere},
                            {"fp32 scaled", "fp32", 0.97, of(Shape::square)},
                            {"fp32 by BLAS", "fp32 scaled", 0, anywhere},
                            {"fp16 scaled", "fp16", 0.97, of(Shape::square)},
                            {"bf16 scaled", "bf16", 0.97, of(Shape::square)},
                            {"e4m3 scaled", "e4m3", 0.97, of(Shape::square)},
                            {"e4m3 avx512", "Eigen avx512", 0.9, anywhere},
                            {"e4m3 avx2", "Eigen avx2", 0.9, anywhere},
                            {"e4m3 scaled", "two passes", 0, anywhere},
                            {"mxfp8", "e4m3 scaled", 0.85, of(Shape::square) | of(Shape::layer)},
                            {"nvfp4", "e4m3 scaled", 0.85, of(Shape::square) | of(Shape::layer)},
                            {"fp8 tiles", "e4m3 scaled", 0, of(Shape::square) | of(Shape::layer)},
                            {"mxfp8", "two passes", 0, of(Shape::square) | of(Shape::layer)},
                            {"e4m3 codes of b", "e4m3 scaled", 1.0, of(Shape::layer)},
                            {"e4m3 codes of a", "e4m3 scaled", 1.0, of(Shape::layer)},
                            {"e4m3 codes of both", "e4m3 scaled", 1.0, of(Shape::layer)},
                            {"e4m3 codes of b avx512", "e4m3 avx512", 1.0, of(Shape::layer)},
                            {"e4m3 codes of b avx2", "e4m3 avx2", 1.0, of(Shape::layer)}};

struct Result {
    std::string shape, name;
    double value, aim;
};

void print_speeds(const std::vector<Shape>& all, const std::map<std::string, std::vector<Contender>>& measured,
                  std::vector<Result>& results) {
    std::printf("\nGFLOP/s\n%-22s", "");
    for (const Shape& shape : all) std::printf("  %s", shape.name.c_str());
    for (const Contender& first : measured.at(all.front().name)) {
        std::printf("\n%-22s", first.name.c_str());
        for (const Shape& shape : all)
            for (const Contender& contender : measured.at(shape.name))
                if (contender.name == first.name) {
                    const Problem& p = shape.problem;
                    const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) *
                                         static_cast<double>(p.k) * static_cast<double>(p.batch);
                    const double speed = 1e-9 * flops / median(contender.times);
                    std::printf("  %*.*f", static_cast<int>(shape.name.size()), speed < 100 ? 1 : 0, speed);
                    results.push_back({shape.name, contender.name, speed, 0});
                }
    }
    std::printf("\n");
}

void print_ratios(const std::vector<Shape>& all, const std::map<std::string, std::vector<Contender>>& measured,
                  std::vector<Result>& results) {
    std::printf("\nTimes as fast (medians of ratios within rounds; aim in brackets, * below it)\n");
    for (const Ratio& ratio : ratios) {
        std::string line;
        for (const Shape& shape : all) {
            if ((ratio.kinds & of(shape.kind)) == 0) continue;
            const Contender *ours = nullptr, *peer = nullptr;
            for (const Contender& contender : measured.at(shape.name)) {
                if (contender.name == ratio.ours) ours = &contender;
                if (contender.name == ratio.peer ||
                    (peer == nullptr && ratio.peer == std::string_view("Eigen") && contender.name.starts_with("Eigen")))
                    peer = &contender;
            }
            if (ours == nullptr || peer == nullptr) continue;
            std::vector<double> values;
            for (std::size_t round = 0; round < ours->times.size(); ++round)
                values.push_back(peer->times[round] / ours->times[round]);
            const double value = median(values);
            char text[128];
            std::snprintf(text, sizeof text, "  %s: %.2f%s", shape.name.c_str(), value, value < ratio.aim ? "*" : "");
            line += text;
            results.push_back({shape.name, concatenate(ratio.ours, " / ", ratio.peer), value, ratio.aim});
        }
        if (line.empty()) continue;
        std::printf("%s / %s", ratio.ours, ratio.peer);
        if (ratio.aim > 0) std::printf(" (%.2f)", ratio.aim);
        std::printf("%s\n", line.c_str());
    }
}

/// The processor's name, where the system provides it.
std::string processor() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
    return "unknown";
}

void write_json(const Settings& settings, const std::vector<Result>& speeds, const std::vector<Result>& comparisons) {
    std::FILE* const file = std::fopen(settings.json.c_str(), "w");
    check(file != nullptr, settings.json, ": cannot be written");
    std::fprintf(file, "{\n  \"processor\": \"%s\",\n  \"threads\": %d,\n  \"rounds\": %d,\n  \"gflops\": [",
                 processor().c_str(), settings.threads, settings.rounds);
    const auto list = [&](const std::vector<Result>& results, bool aims) {
        for (std::size_t i = 0; i < results.size(); ++i) {
            std::fprintf(file, "%s\n    {\"shape\": \"%s\", \"name\": \"%s\", \"value\": %.4g", i == 0 ? "" : ",",
                         results[i].shape.c_str(), results[i].name.c_str(), results[i].value);
            if (aims && results[i].aim > 0) std::fprintf(file, ", \"aim\": %.2f", results[i].aim);
            std::fprintf(file, "}");
        }
    };
    list(speeds, false);
    std::fprintf(file, "\n  ],\n  \"ratios\": [");
    list(comparisons, true);
    std::fprintf(file, "\n  ]\n}\n");
    check(std::ferror(file) == 0 && std::fclose(file) == 0, settings.json, ": cannot be written");
}

Settings parse(int argc, char** argv) {
    Settings settings;
    for (int i = 1; i < argc; ++i) {
        const std::string option = argv[i];
        const auto value = [&] {
            check(i + 1 < argc, "bench_products_product: ", option, " needs a value");
            return argv[++i];
        };
        if (option == "--quick") settings.quick = true;
        else if (option == "--threads") settings.threads = std::max(1, std::atoi(value()));
        else if (option == "--rounds") settings.rounds = std::max(1, std::atoi(value()));
        else if (option == "--seconds") settings.seconds = std::atof(value());
        else if (option == "--only") settings.only = value();
        else if (option == "--json") settings.json = value();
        else if (option == "--isa") setenv("UNITSCALE_ISA", value(), 1);  // before the first call of active_isa
        else
            fail("bench_products_product: unknown option ", option,
                 "; expected --quick, --threads N, --rounds N, --seconds S, --only TEXT, --json FILE or --isa NAME");
    }
    if (settings.quick) settings.rounds = 3, settings.seconds = 0.002;
    return settings;
}

int run(int argc, char** argv) {
    const Settings settings = parse(argc, argv);
    const PairKernel pairs = active_pair_kernel();
    std::printf("%s, caches %s, %d thread%s, kernels: %s%s\n", processor().c_str(), text(active_caches()).c_str(),
                settings.threads, settings.threads == 1 ? "" : "s", std::string(name(active_isa())).c_str(),
                pairs == PairKernel::matrix ? " with AMX"
                : pairs == PairKernel::dot  ? " with vdpbf16ps"
                                            : "");
#if UNITSCALE_BENCH_OPENBLAS
    std::printf("OpenBLAS: kernels of %s\n", bench::openblas_core());
#endif
#if UNITSCALE_BENCH_ONEDNN
    std::printf("oneDNN: %s\n", bench::onednn_isa());
#endif
    MemoryPool pool(huge_page_advice());
    std::map<std::string, std::vector<Contender>> measured;
    std::vector<Shape> all;
    for (Shape& shape : shapes(settings.quick)) {
        if (shape.name.find(settings.only) == std::string::npos) continue;
        Field field(shape.problem, {settings.threads, &pool});
        measure(field.contenders, settings);
        measured[shape.name] = std::move(field.contenders);
        all.push_back(shape);
    }
    check(!all.empty(), "bench_products_product: no shape has '", settings.only, "' in its name");
    std::vector<Result> speeds, comparisons;
    print_speeds(all, measured, speeds);
    print_ratios(all, measured, comparisons);
    if (!settings.json.empty()) write_json(settings, speeds, comparisons);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
