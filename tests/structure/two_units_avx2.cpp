// SPDX-License-Identifier: MIT
// Compiled with -mavx2 -mfma. xtensor is included before the library.
#if __has_include(<xtensor/containers/xarray.hpp>)
#include <xtensor/containers/xarray.hpp>
#include <xtensor/views/xview.hpp>
#else
#include <xtensor/xarray.hpp>
#include <xtensor/xview.hpp>
#endif

#include "two_units.hpp"

namespace two_units {

std::vector<std::size_t> layout_avx2() { return layout(); }
Tensor<float> make_avx2(const std::shared_ptr<MemoryPool>& pool) { return make(pool); }
Tensor<float> rounded_avx2(Tensor<float> x) { return rounded(std::move(x)); }
std::vector<float> sums_avx2(const Tensor<float>& x, const std::shared_ptr<MemoryPool>& pool) { return sums(x, pool); }

}  // namespace two_units
