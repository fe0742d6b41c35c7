// SPDX-License-Identifier: MIT
#include "product_peers.hpp"

#include <cblas.h>

namespace unitscale::bench {

Product openblas_product(const Problem& p, const float* a, const float* b, float* c, int threads) {
    return [p, a, b, c, threads] {
        openblas_set_num_threads(threads);
        const auto m = static_cast<blasint>(p.m), n = static_cast<blasint>(p.n), k = static_cast<blasint>(p.k);
        for (std::ptrdiff_t i = 0; i < p.batch; ++i)
            cblas_sgemm(CblasRowMajor, p.a_transposed ? CblasTrans : CblasNoTrans,
                        p.b_transposed ? CblasTrans : CblasNoTrans, m, n, k, 1.0f, a + i * p.a_size(),
                        p.a_transposed ? m : k, b + i * p.b_size(), p.b_transposed ? k : n, 0.0f, c + i * p.c_size(),
                        n);
    };
}

const char* openblas_core() { return openblas_get_corename(); }

}  // namespace unitscale::bench
