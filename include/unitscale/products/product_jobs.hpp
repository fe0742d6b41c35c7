// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/parallel.hpp>
#include <unitscale/products/micro_kernel.hpp>

#include <algorithm>
#include <cstddef>

namespace unitscale::products {

/// Multiply-adds per thread below which another thread costs more than it gains.
inline constexpr std::ptrdiff_t matmul_work_threshold = std::ptrdiff_t{1} << 19;
/// The threshold for one row of A. Such a product waits for B from memory.
inline constexpr std::ptrdiff_t one_row_work_threshold = std::ptrdiff_t{1} << 18;

/// Partition of a batch of products among threads. Each item is a grid of row and column ranges, so that a thread packs
/// little compared with the work of its product.
struct MatmulPartition {
    std::ptrdiff_t parts = 1;  ///< threads
    std::ptrdiff_t rows = 1, cols = 1;
};
[[nodiscard]] inline MatmulPartition matmul_partition(int threads, std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k,
                                                      std::ptrdiff_t batch) {
    MatmulPartition best;
    if (threads <= 1 || in_parallel_region()) return best;
    const double work =
        static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(batch);
    const std::ptrdiff_t least_work = m == 1 ? one_row_work_threshold : matmul_work_threshold;
    best.parts = std::max<std::ptrdiff_t>(
        1, static_cast<std::ptrdiff_t>(std::min<double>(threads, work / static_cast<double>(least_work))));
    if (best.parts == 1 || batch >= 4 * best.parts) return best;
    std::ptrdiff_t least = -1;
    for (std::ptrdiff_t rows = 1; rows <= best.parts; ++rows) {
        if (best.parts % rows != 0) continue;
        const std::ptrdiff_t cols = best.parts / rows, cost = m / rows + n / cols;
        if (least < 0 || cost < least) {
            best.rows = rows;
            best.cols = cols;
            least = cost;
        }
    }
    return best;
}

/// The jobs of a batch of products with C [m,n]. Where the partition cuts items, a job is some rows of an item for one
/// of its ranges of columns. Its rows are as many as the kernels pack together, fewer than the partition's. With few
/// rows, the columns are cut finer instead. So a thread that is held up leaves jobs to the others (`parallel_jobs`).
/// Jobs that share columns follow each other, so a thread packs these columns of B once. No tile is cut. Where the
/// partition does not cut items, a job is an item.
/// Test: tests/products/product_jobs_test.cpp
struct ProductJobs {
    MatmulPartition partition{};
    std::ptrdiff_t batch = 1, m = 0, n = 0;
    std::ptrdiff_t tile_rows = 1, tile_cols = 1, rows_together = 1;
    std::ptrdiff_t cuts_of_cols = 1;  ///< of the partition's ranges of columns

    struct Job {
        std::ptrdiff_t item = 0;
        std::ptrdiff_t panel = 0;                       ///< number of the range of columns, in the whole batch
        std::ptrdiff_t i0 = 0, i1 = 0, j0 = 0, j1 = 0;  ///< rows and columns of C, maybe none
        std::ptrdiff_t above = 0, below = 0;            ///< rows of the partition's range before i0, and from i1 on
    };

    [[nodiscard]] bool cuts_items() const noexcept { return partition.rows * partition.cols > 1; }
    /// Ranges of rows of an item.
    [[nodiscard]] std::ptrdiff_t row_parts() const noexcept {
        const std::ptrdiff_t together = partition.rows * rows_together;
        return cuts_items() ? partition.rows * ((m + together - 1) / together) : 1;
    }
    /// Ranges of columns of an item.
    [[nodiscard]] std::ptrdiff_t col_parts() const noexcept { return cuts_items() ? partition.cols * cuts_of_cols : 1; }
    [[nodiscard]] std::ptrdiff_t count() const noexcept { return batch * col_parts() * row_parts(); }
    [[nodiscard]] Job job(std::ptrdiff_t index) const noexcept {
        const std::ptrdiff_t rows = row_parts(), row = index % rows, panel = index / rows, cols = col_parts(),
                             col = panel % cols, rows_of_range = rows / partition.rows,
                             range = row / rows_of_range * rows_of_range;
        Job job{panel / cols, panel};
        job.i0 = begin(m, tile_rows, rows, row);
        job.i1 = begin(m, tile_rows, rows, row + 1);
        job.j0 = begin(n, tile_cols, cols, col);
        job.j1 = begin(n, tile_cols, cols, col + 1);
        job.above = job.i0 - begin(m, tile_rows, rows, range);
        job.below = begin(m, tile_rows, rows, range + rows_of_range) - job.i1;
        return job;
    }
    /// The most rows and columns that a job has.
    [[nodiscard]] std::ptrdiff_t most_rows() const noexcept { return most(m, tile_rows, row_parts()); }
    [[nodiscard]] std::ptrdiff_t most_cols() const noexcept { return most(n, tile_cols, col_parts()); }

private:
    [[nodiscard]] static std::ptrdiff_t tiles(std::ptrdiff_t size, std::ptrdiff_t tile) noexcept {
        return round_up(size, tile) / tile;
    }
    [[nodiscard]] static std::ptrdiff_t begin(std::ptrdiff_t size, std::ptrdiff_t tile, std::ptrdiff_t parts,
                                              std::ptrdiff_t part) noexcept {
        return std::min(size, tiles(size, tile) * part / parts * tile);
    }
    [[nodiscard]] static std::ptrdiff_t most(std::ptrdiff_t size, std::ptrdiff_t tile, std::ptrdiff_t parts) noexcept {
        return std::min(size, round_up(tiles(size, tile), parts) / parts * tile);
    }
};

/// Columns of B that are packed together: an equal part of `cols`, in whole tiles. It may exceed `limit` by an eighth,
/// because A is read again for every part.
[[nodiscard]] constexpr std::ptrdiff_t right_strip(std::ptrdiff_t cols, std::ptrdiff_t limit,
                                                   std::ptrdiff_t tile_cols) noexcept {
    const std::ptrdiff_t most = std::max(limit + limit / 8, tile_cols), parts = (cols + most - 1) / most;
    return std::min(cols, round_up((cols + parts - 1) / parts, tile_cols));
}

}  // namespace unitscale::products
