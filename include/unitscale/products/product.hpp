// SPDX-License-Identifier: MIT
#pragma once

// The matrix product. The headers of this folder, in the order in which a product runs:
//
// Entry
//   product.hpp             MatmulArguments, choice of kernels, `matmul`, `pack_weights`. `matmul_packed` runs the
//                           steps below for each job.
//   product_jobs.hpp        ProductJobs: how a product is cut into jobs for threads.
// Operands
//   operand.hpp             Operand: elements with their quantiser, numbers, codes, or a packed B; its checks.
//   coded_matrix.hpp        CodedMatrix: an operand of 8-bit codes, decoded while it is packed.
//   packed_right.hpp        PackedRight: weights packed once for many products.
//   pack.hpp                MatrixView: strides of an operand. Also packing, below.
//   pack_source.hpp         PackSource: an operand without its element type, so that later steps are compiled once.
// Quantisation on the way
//   register_quantiser.hpp  Quantises a vector register to a format, between load and store.
//   quantise_lines.hpp      Copies or transposes lines of elements as floats and quantises each of them.
// Packing of A and B
//   pack.hpp                LeftPanel and RightPanels: quantised elements in the layout that micro-kernels read.
// Blocks
//   block_sizes.hpp         BlockSizes: rows of A and columns of B that are packed together, from the caches' sizes.
// Micro-kernels
//   micro_kernel.hpp        TileProduct: one tile of C in registers, for each instruction set.
//   block.hpp               BlockProduct: packed B times rows of A, tile by tile, in one thread.
//   blocked_product.hpp     BlockedProduct: B is packed once, and the caller decides when rows of C are computed.
// Pair kernels, for operands that are exact in bf16
//   pack_pairs.hpp          Packs A and B as pairs of bf16.
//   pair_kernels.hpp        Multiplies pairs by the bf16 instructions (AVX512_BF16, AMX).
// Few rows of A
//   pack.hpp                `right_in_place`: a row-major B read in place, for at most `max_few_rows` rows of A.
//   few_rows.hpp            Multiplies a column-major B in place, for at most `column_major_rows` rows of A.
// Coded weights
//   coded_elements.hpp      Elements and scales of a coded weight in registers (coded_elements_avx2.hpp: for AVX2).
//   coded_rows.hpp          Multiplies a coded weight in place, for one row of A.
//   coded_panels.hpp        Decodes a strip of a coded weight into panels, for more rows.
// Sums in fewer bits
//   limited_sums.hpp        `limited_product`: sums in a format, or as tensor cores form them. Its parts, in turn:
//                           limited_rounding.hpp, aligned_sums.hpp, limited_kernels.hpp.
// BLAS
//   blas.hpp                `matmul_blas`: large products without quantisation, where the build has a BLAS.

#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/products/blas.hpp>
#include <unitscale/products/block.hpp>
#include <unitscale/products/block_sizes.hpp>
#include <unitscale/products/coded_panels.hpp>
#include <unitscale/products/few_rows.hpp>
#include <unitscale/products/operand.hpp>
#include <unitscale/products/packed_right.hpp>
#include <unitscale/products/pair_kernels.hpp>
#include <unitscale/products/product_jobs.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>

namespace unitscale::products {

/// A batch of products, scaled and added to C:
///   C[b] = alpha (A[b] B[b] + bias) + gamma C[b]      A [m,k]   B [k,n]   C [m,n]   bias [n]
/// Strides are arbitrary; a batch stride of 0 shares an operand (not C). C overlaps no operand. C is not read when
/// gamma is 0. Sums are in Accum<T> and rounded to T once. With k = 0 the result is alpha bias + gamma C.
template <class T>
struct MatmulArguments {
    std::ptrdiff_t m = 0, n = 0, k = 0, batch = 1;
    Operand<T> a{};
    Operand<T> b{};
    MatrixView<T> c{};
    Accum<T> alpha = 1, gamma = 0;
    const T* bias = nullptr;
    const Accum<T>* row_scale = nullptr;
    const Accum<T>* col_scale = nullptr;
};

/// Element (i, j) of item b of an operand that is not packed, as the product multiplies it.
template <class T>
[[nodiscard]] Accum<T> operand_number(const Operand<T>& operand, std::ptrdiff_t b, std::ptrdiff_t i, std::ptrdiff_t j) {
    using P = Accum<T>;
    if (operand.weight != nullptr)
        return static_cast<P>(
            operand.weight->value(static_cast<std::size_t>(j), static_cast<std::size_t>(i), operand.weight_apart));
    if (operand.codes) return static_cast<P>(decode(operand.codes->format, *operand.codes->codes.item(b).at(i, j)));
    if (operand.numbers) return *operand.numbers->view.item(b).at(i, j);
    const std::ptrdiff_t offset = operand.view.item(b).at(i, j) - operand.view.data;
    const auto value = element_cast<P>(operand.view.data[offset]);
    return operand.quantiser ? quantise(operand.quantiser->format, value, operand.quantiser->options(operand.key),
                                        static_cast<std::uint64_t>(offset))
                             : value;
}

/// Element (i, j) of item b of C, from its sum.
template <class T>
void finish_sum(const MatmulArguments<T>& args, std::ptrdiff_t b, std::ptrdiff_t i, std::ptrdiff_t j, Accum<T> sum) {
    using P = Accum<T>;
    T& c = *args.c.item(b).at(i, j);
    const P bias = args.bias != nullptr ? element_cast<P>(args.bias[j]) : P{0};
    const P old = args.gamma != 0 ? args.gamma * element_cast<P>(c) : P{0};
    if (args.col_scale != nullptr) sum *= args.col_scale[j];
    if (args.row_scale != nullptr) sum *= args.row_scale[i];
    c = element_cast<T>(args.alpha * (sum + bias) + old);
}

/// The definition of the product, element by element in Accum<T>. Tests compare `matmul` with it.
template <class T>
void matmul_naive(const MatmulArguments<T>& args) {
    using P = Accum<T>;
    for (std::ptrdiff_t b = 0; b < args.batch; ++b)
        for (std::ptrdiff_t i = 0; i < args.m; ++i)
            for (std::ptrdiff_t j = 0; j < args.n; ++j) {
                P sum = 0;
                for (std::ptrdiff_t p = 0; p < args.k; ++p)
                    sum += operand_number(args.a, b, i, p) * operand_number(args.b, b, p, j);
                finish_sum(args, b, i, j, sum * (args.a.factor() * args.b.factor()));
            }
}

/// Largest number of rows of A for which B is multiplied in place, if it can be.
inline constexpr std::ptrdiff_t max_few_rows = 12;
/// Jobs of a thread for so few rows. More of them would be a few microseconds long.
inline constexpr std::ptrdiff_t few_rows_cuts = 4;

/// Whether a column-major B can be multiplied in place. Its elements must then be quantised in registers, if at all.
template <class P>
[[nodiscard]] bool columns_in_place(Isa isa, std::ptrdiff_t m, const MatrixView<const P>& b,
                                    const Quantiser* quantiser) noexcept {
    return m <= column_major_rows && b.row_stride == 1 && b.col_stride != 0 &&
           (quantiser == nullptr ||
            (std::is_same_v<P, float> && isa != Isa::baseline && quantises_in_register(*quantiser)));
}

/// The product of operands of any element type, codes included, without stochastic rounding. A pair kernel requires
/// that T's sums are float and that quantised operands are exact in bf16.
template <class T>
void matmul_packed(const Execution& execution, Isa isa, PairKernel pairs, const MatmulArguments<T>& args,
                   const PackSource<Accum<T>>& a, const PackSource<Accum<T>>& b, const Quantiser* round_a,
                   const Quantiser* round_b) {
    using P = Accum<T>;
    constexpr bool may_pair = UNITSCALE_X86 && std::is_same_v<P, float>;
    const bool paired = may_pair && pairs != PairKernel::none;
    const TileShape shape = tile_shape(isa);
    const std::ptrdiff_t tile_rows = paired ? pair_tile_rows(pairs) : shape.rows;
    // Cuts keep the groups of sixteen columns of a coded weight whole.
    const std::ptrdiff_t tile_cols =
        args.b.weight != nullptr ? std::lcm(shape.columns<P>(), std::ptrdiff_t{16}) : shape.columns<P>();
    const MatmulPartition partition = matmul_partition(execution.threads, args.m, args.n, args.k, args.batch);
    const ProductJobs jobs{.partition = partition,
                           .batch = args.batch,
                           .m = args.m,
                           .n = args.n,
                           .tile_rows = tile_rows,
                           .tile_cols = tile_cols,
                           .rows_together = paired ? most_pair_rows(pairs) : block_sizes().rows,
                           .cuts_of_cols = args.m <= max_few_rows ? few_rows_cuts : 1};
    const std::ptrdiff_t most_rows = jobs.most_rows(), most_cols = jobs.most_cols();
    // Packed B: `depth` x `strip` at a time.
    const std::ptrdiff_t depth = right_depth<T>(paired ? pairs : PairKernel::none, args.k);
    const CodedRight weight{args.b.weight, 0, 0, args.b.weight_apart};
    const bool in_registers = weight.weight != nullptr && args.m == 1 && pairs != PairKernel::matrix &&
                              std::is_same_v<P, float> && decodes_in_registers(isa, *weight.weight);
    const bool few_rows = args.b.packed == nullptr && args.m <= max_few_rows;
    const bool column_major =
        few_rows && !paired && b.widened() && columns_in_place(isa, args.m, b.template view<P>(), round_b);
    const BlockSizes& sizes = block_sizes();
    const std::ptrdiff_t limit = few_rows               ? sizes.right_of_few_rows
                                 : paired               ? sizes.right_pairs
                                 : args.m <= sizes.rows ? sizes.right_of_one_block
                                                        : sizes.right;
    const std::ptrdiff_t strip = in_registers ? most_cols
                                 : column_major
                                     ? std::min(most_cols, 2 * tile_cols)
                                     : right_strip(most_cols, limit / std::max<std::ptrdiff_t>(depth, 1), tile_cols);
    const std::ptrdiff_t right_size = in_registers ? pair_buffer
                                      : paired     ? pair_buffer + packed_right_pairs_size(depth, strip)
                                                   : round_up(packed_right_size<P>(isa, depth, strip), 16);
    const std::ptrdiff_t left_size =
        paired ? pair_scratch_size<T>(most_rows, strip, depth) : block_scratch_size<T>(isa, most_rows, strip, depth);
    const std::ptrdiff_t part_size = right_size + round_up(left_size, 16);
    // A tile may read these vectors past their end, so they are copied with padding. Factors of operands are part of
    // the columns' scales.
    const P factor = args.a.factor() * args.b.factor();
    const bool scales_cols = args.col_scale != nullptr || factor != 1;
    const std::ptrdiff_t padded_cols = round_up(args.n, tile_cols), padded_rows = round_up(args.m, tile_rows);
    const std::ptrdiff_t vectors_size =
        round_up((args.bias != nullptr ? padded_cols : 0) + (scales_cols ? padded_cols : 0) +
                     (args.row_scale != nullptr ? padded_rows : 0),
                 16);
    Scratch<P> scratch(execution, static_cast<std::size_t>(vectors_size + partition.parts * part_size));
    P* next = scratch.data();
    const auto padded_copy = [&](const auto* vector, std::ptrdiff_t count, std::ptrdiff_t padded) -> const P* {
        if (vector == nullptr) return nullptr;
        P* const copy = next;
        widen_line(isa, vector, count, copy);
        std::fill(copy + count, copy + padded, P{0});
        next += padded;
        return copy;
    };
    const P* const bias = padded_copy(args.bias, args.n, padded_cols);
    P* const col_scale = scales_cols ? next : nullptr;
    if (args.col_scale != nullptr) static_cast<void>(padded_copy(args.col_scale, args.n, padded_cols));
    else if (scales_cols) next = std::fill_n(next, padded_cols, P{1});
    if (factor != 1)
        for (std::ptrdiff_t j = 0; j < args.n; ++j) col_scale[j] *= factor;
    const P* const row_scale = padded_copy(args.row_scale, args.m, padded_rows);

    // The part of B that a thread has packed: of which panel, from which column and depth on.
    struct Packed {
        std::ptrdiff_t panel = -1, j = 0, p = 0;
        bool operator==(const Packed&) const = default;
    };
    struct Worker {
        P* right;  // memory of packed B
        P* left;   // memory of packed A
        Packed packed{};
        RightPanels<P> panels{};
        RightPairs pairs{};
    };
    // Rows of C, for the strip of the job's columns from j on, and the depth from p on.
    const auto run_job = [&](const ProductJobs::Job& job, std::ptrdiff_t j, std::ptrdiff_t p, Worker& worker) {
        if (job.i0 == job.i1 || j >= job.j1) return;
        const std::ptrdiff_t cols = std::min(strip, job.j1 - j), k = std::min(depth, args.k - p);
        const Packed part{job.panel, j, p};
        const bool packed = std::exchange(worker.packed, part) == part;
        BlockProduct<T> product;
        product.m = job.i1 - job.i0;
        product.above = job.above;
        product.below = job.below;
        product.a = a.item(job.item).block(job.i0, p);
        product.round_a = round_a;
        product.alpha = args.alpha;
        product.gamma = p == 0 ? args.gamma : P{1};
        product.row_scale = row_scale != nullptr ? row_scale + job.i0 : nullptr;
        const auto multiply = [&](std::ptrdiff_t from, const auto& panels) {
            product.c = args.c.item(job.item).block(job.i0, from);
            product.bias = p == 0 && bias != nullptr ? bias + from : nullptr;
            product.col_scale = col_scale != nullptr ? col_scale + from : nullptr;
            if constexpr (std::is_same_v<decltype(panels), const RightPanels<P>&>) {
                product.b = panels;
                multiply_block(isa, product, worker.left);
            } else {
                multiply_block_pairs(pairs, product, panels, worker.left);
            }
        };
        const CodedRight coded = weight.block(p, j);
#if UNITSCALE_X86
        if constexpr (may_pair)
            if (paired) {
                if (args.b.packed != nullptr) {
                    worker.pairs = args.b.packed->pair_panels(p, j, cols);
                } else if (in_registers) {
                    worker.pairs = {nullptr, k, cols, coded_columns, 16, 0, 0};
                    worker.pairs.coded = coded;
                } else if (!packed) {
                    auto* const out = reinterpret_cast<Pair*>(worker.right + pair_buffer);
                    if (coded.weight != nullptr) {
                        worker.pairs = decode_right_pairs(coded, k, cols, out);
                    } else {
                        const PackSource<P> block = b.item(job.item).block(p, j);
                        worker.pairs = block.functions->right_pairs(block, k, cols, round_b, out, worker.right);
                    }
                }
                return multiply(j, worker.pairs);
            }
#endif
        if (args.b.packed != nullptr) return multiply(j, args.b.packed->panels(p, j, cols));
        if (coded.weight != nullptr) {
            if (in_registers) {
                worker.panels = {nullptr, k, cols, coded_columns, 16, 0, 0};
                worker.panels.coded = coded;
            } else if (!packed) {
                worker.panels = decode_right<P>(isa, coded, k, cols, worker.right);
            }
            return multiply(j, worker.panels);
        }
        const PackSource<P> block = b.item(job.item).block(p, j);
        std::ptrdiff_t done = 0;
        if (args.m <= max_few_rows && b.widened() && round_b == nullptr && b.col_stride == 1 && b.row_stride != 0) {
            done = cols / shape.lanes<P>() * shape.lanes<P>();
            if (done > 0) multiply(j, right_in_place(isa, block.template view<P>(), k, done));
        } else if (column_major) {
            done = cols;
            multiply(j, right_columns_in_place(isa, block.template view<P>(), k, cols,
                                               column_major_vectors<P>(isa, args.m, b.col_stride), round_b));
        }
        if (done == cols) return;
        if (!packed) {
            const PackSource<P> rest = block.block(0, done);
            worker.panels = rest.functions->right(isa, rest, k, cols - done, round_b, worker.right);
        }
        multiply(j + done, worker.panels);
    };
    // Runs body(columns before the strip, p) for all strips of a job's columns and all depths.
    const auto each_part = [&](const auto& body) {
        for (std::ptrdiff_t before = 0; before < most_cols; before += strip)
            for (std::ptrdiff_t p = 0; p == 0 || p < args.k; p += std::max<std::ptrdiff_t>(depth, 1)) body(before, p);
    };
    // Calls use(job, worker) for all jobs.
    const auto each_job = [&](const auto& use) {
        parallel_jobs(partition.parts, jobs.count(), [&](std::ptrdiff_t index, auto next_job) {
            P* const own = scratch.data() + vectors_size + index * part_size;
            Worker worker{own, own + right_size};
            while (const std::optional<std::ptrdiff_t> job = next_job()) use(jobs.job(*job), worker);
        });
    };
    if (jobs.row_parts() == 1 || args.m <= max_few_rows)  // no job profits from B as another has packed it
        return each_job([&](const ProductJobs::Job& job, Worker& worker) {
            each_part([&](std::ptrdiff_t before, std::ptrdiff_t p) { run_job(job, job.j0 + before, p, worker); });
        });
    each_part([&](std::ptrdiff_t before, std::ptrdiff_t p) {  // sums of the depth before are complete
        each_job([&](const ProductJobs::Job& job, Worker& worker) { run_job(job, job.j0 + before, p, worker); });
    });
}

/// The pair kernel, if sums are float and both operands are exact in bf16. Otherwise none.
template <class T>
[[nodiscard]] PairKernel usable_pairs(PairKernel pairs, bool a_is_exact, bool b_is_exact) noexcept {
    return UNITSCALE_X86 && std::is_same_v<Accum<T>, float> && a_is_exact && b_is_exact ? pairs : PairKernel::none;
}

/// `matmul` with the kernels of one instruction set, which the processor must have: for tests and benchmarks. `pairs`
/// selects bf16 instructions where both operands have formats that are exact in bf16. `isa` is avx512 then.
template <class T>
void matmul_with(Isa isa, const Execution& execution, const MatmulArguments<T>& args,
                 PairKernel pairs = PairKernel::none) {
    if (args.m <= 0 || args.n <= 0 || args.batch <= 0) return;
    check_operand("matmul: a", args.a, args.m, args.k, args.batch);
    if (const PackedRight<T>* const packed = args.b.packed; packed != nullptr) {
        packed->check_fits(args.k, args.n, args.a.is_exact_in_bf16());
        isa = packed->isa, pairs = packed->pairs;
    } else {
        check_operand("matmul: b", args.b, args.k, args.n, args.batch);
        pairs = usable_pairs<T>(pairs, args.a.is_exact_in_bf16(), args.b.is_exact_in_bf16());
    }
    const OperandSource<T> a(execution, isa, args.a, args.m, args.k, args.batch),
        b(execution, isa, args.b, args.k, args.n, args.batch);
    matmul_packed<T>(execution, isa, pairs, args, a.source(), b.source(), a.quantiser(), b.quantiser());
}

/// Quantises and packs B for many products. They share B; they may differ from `args` in A, C, m, the factors and the
/// batch. `matmul` with the packed B gives the bits of `matmul` without it. A's format in those products is the format
/// of `args.a`. So weights that many small products read are quantised once.
/// Errors: `pack_weights: b: ...` as for `matmul`; stochastic rounding, because its random numbers belong to one
/// product; codes or numbers. Test: tests/products/packed_right_test.cpp
template <class T>
[[nodiscard]] PackedRight<T> pack_weights_with(Isa isa, const MatmulArguments<T>& args,
                                               PairKernel pairs = PairKernel::none) {
    check(!args.b.codes && !args.b.numbers, "pack_weights: b: is given by codes or numbers; expected elements");
    check_operand("pack_weights: b", args.b, args.k, args.n, 1);
    check(!args.b.is_stochastic(), "pack_weights: b: stochastic rounding cannot be done once for many products");
    pairs = usable_pairs<T>(pairs, args.a.is_exact_in_bf16(), args.b.is_exact_in_bf16());
    return pack_right_once<T>(isa, pairs, args.b.view, args.k, args.n, args.b.quantiser ? &*args.b.quantiser : nullptr);
}
template <class T>
[[nodiscard]] PackedRight<T> pack_weights(const MatmulArguments<T>& args) {
    return pack_weights_with(active_isa(), args, active_pair_kernel());
}

/// The matrix product. Bits do not depend on the number of threads (on one machine): the sum of each element runs over
/// k in one order, in one thread at a time. All memory beside the operands is scratch from the execution's pool. Inside
/// a parallel region the product runs in the calling thread.
/// If both operands are quantised to formats that are exact in bf16 (pair_kernels.hpp), the processor's bf16
/// instructions are used where they are the fastest. They add equal, exact products in pairs. So the bits differ,
/// within float rounding, from the product of operands that were quantised before.
/// Built with UNITSCALE_BLAS, large float and double products without rounding go to the BLAS (blas.hpp), in its order
/// of sums. Their bits then differ from the bits with a packed B.
/// Errors: `matmul: a: ...` for an invalid quantiser, or a NaN quantised to a format without NaN.
/// Test: tests/products/product_test.cpp
template <class T, bool blas = uses_blas>
void matmul(const Execution& execution, const MatmulArguments<T>& args) {
    if constexpr (blas && blas_type<T>)
        if (blas_pays(args.m, args.n, args.k) && blas_can(args)) return matmul_blas(execution, args);
    matmul_with(active_isa(), execution, args, active_pair_kernel());
}

}  // namespace unitscale::products
