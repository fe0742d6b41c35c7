// SPDX-License-Identifier: MIT
// Eigen's float product, compiled once for each instruction set. In each, the build defines `Eigen` as another name, so
// that the linker does not confuse their functions. UNITSCALE_EIGEN_PRODUCT is the name of the function.
#include "product_peers.hpp"

#include <Eigen/Core>

namespace unitscale::bench {

namespace {
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ColMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;

template <class A, class B>
void multiply(const Problem& p, const float* a, const float* b, float* c) {
    Eigen::Map<RowMajor>(c, p.m, p.n).noalias() = Eigen::Map<const A>(a, p.m, p.k) * Eigen::Map<const B>(b, p.k, p.n);
}
}  // namespace

void UNITSCALE_EIGEN_PRODUCT(const Problem& p, const float* a, const float* b, float* c, int threads) {
    Eigen::setNbThreads(threads);
    for (std::ptrdiff_t item = 0; item < p.batch; ++item, a += p.a_size(), b += p.b_size(), c += p.c_size()) {
        if (p.a_transposed && p.b_transposed) multiply<ColMajor, ColMajor>(p, a, b, c);
        else if (p.a_transposed) multiply<ColMajor, RowMajor>(p, a, b, c);
        else if (p.b_transposed) multiply<RowMajor, ColMajor>(p, a, b, c);
        else multiply<RowMajor, RowMajor>(p, a, b, c);
    }
}

}  // namespace unitscale::bench
