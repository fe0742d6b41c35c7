// SPDX-License-Identifier: MIT
#include <unitscale/products/product_jobs.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

using namespace unitscale::products;

TEST_CASE("large products are cut between threads along the longer side, small ones are not cut", "[products]") {
    REQUIRE(matmul_partition(4, 16, 16, 16, 1).parts == 1);
    const auto tall = matmul_partition(4, 4096, 64, 64, 1), wide = matmul_partition(4, 64, 4096, 64, 1),
               square = matmul_partition(4, 512, 512, 512, 1);
    REQUIRE((tall.rows == 4 && tall.cols == 1));
    REQUIRE((wide.rows == 1 && wide.cols == 4));
    REQUIRE((square.rows == 2 && square.cols == 2));
    const auto heads = matmul_partition(4, 128, 64, 128, 32);
    REQUIRE((heads.parts == 4 && heads.rows == 1 && heads.cols == 1));
}

TEST_CASE("B is packed in equal parts of whole tiles that exceed the limit by an eighth at most", "[products]") {
    CHECK(right_strip(1024, 1024, 24) == 1024);
    CHECK(right_strip(1024, 1000, 24) == 1024);  // not 984 columns and 40
    CHECK(right_strip(1024, 512, 24) == 528);
    CHECK(right_strip(1024, 500, 32) == 512);
    CHECK(right_strip(1200, 1024, 32) == 608);
    CHECK(right_strip(100, 8, 32) == 32);
    for (std::ptrdiff_t cols = 1; cols < 400; ++cols)
        for (const std::ptrdiff_t limit : {0, 24, 50, 100, 399}) {
            const std::ptrdiff_t strip = right_strip(cols, limit, 24);
            REQUIRE((strip == cols || strip % 24 == 0));
            REQUIRE(strip <= std::max<std::ptrdiff_t>(24, limit + limit / 8 + 23));
        }
}

TEST_CASE("every element of C belongs to one job, and no tile is cut", "[products]") {
    for (const MatmulPartition& partition :
         {MatmulPartition{}, MatmulPartition{2, 2, 1}, MatmulPartition{2, 1, 2}, MatmulPartition{6, 2, 3}})
        for (const std::ptrdiff_t m : {1, 11, 12, 100, 131, 500})
            for (const std::ptrdiff_t n : {1, 31, 32, 100}) {
                const ProductJobs jobs{partition, 2, m, n, 12, 32, 48, m < 100 ? 4 : 1};
                std::vector<int> count(static_cast<std::size_t>(2 * m * n));
                bool whole_tiles = true, within_most = true, in_order = true;
                std::ptrdiff_t panel = 0;
                for (std::ptrdiff_t index = 0; index < jobs.count(); ++index) {
                    const ProductJobs::Job job = jobs.job(index);
                    for (std::ptrdiff_t i = job.i0; i < job.i1; ++i)
                        for (std::ptrdiff_t j = job.j0; j < job.j1; ++j)
                            ++count[static_cast<std::size_t>((job.item * m + i) * n + j)];
                    whole_tiles = whole_tiles && job.i0 % 12 == 0 && job.j0 % 32 == 0;
                    within_most =
                        within_most && job.i1 - job.i0 <= jobs.most_rows() && job.j1 - job.j0 <= jobs.most_cols();
                    in_order = in_order && (job.panel == panel || job.panel == panel + 1);
                    panel = job.panel;
                }
                INFO(m << " x " << n << ", " << partition.rows << " x " << partition.cols);
                CHECK(std::all_of(count.begin(), count.end(), [](int c) { return c == 1; }));
                CHECK(whole_tiles);
                CHECK(within_most);
                CHECK(in_order);
            }
}

TEST_CASE("a job has as many rows as are packed together, or is a whole item", "[products]") {
    const ProductJobs cut{{2, 2, 1}, 1, 2048, 256, 32, 32, 128};
    CHECK(cut.count() == 16);
    CHECK(cut.most_rows() == 128);
    CHECK(cut.job(3).i0 == 384);
    CHECK(cut.job(3).above == 384);
    CHECK(cut.job(3).below == 512);
    CHECK(cut.job(7).below == 0);
    CHECK(cut.job(8).above == 0);
    const ProductJobs columns{{2, 1, 2}, 1, 256, 1024, 32, 32, 128};
    CHECK(columns.count() == 4);
    CHECK(columns.job(2).j0 == 512);
    CHECK(columns.job(1).panel == 0);
    const ProductJobs few_rows{{2, 1, 2}, 1, 4, 1024, 32, 32, 128, 4};
    CHECK(few_rows.count() == 8);
    CHECK(few_rows.most_cols() == 128);
    const ProductJobs items{{2, 1, 1}, 32, 256, 64, 32, 32, 128};
    CHECK_FALSE(items.cuts_items());
    CHECK(items.count() == 32);
    CHECK(items.job(5).item == 5);
    CHECK(items.most_rows() == 256);
}
