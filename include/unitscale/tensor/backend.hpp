// SPDX-License-Identifier: MIT
#pragma once

// The only header that names Eigen and xtensor: every other header sees the types below. xtensor 0.26 moved its headers
// into folders; both layouts are supported. This header defines no macro of either library, so our types do not depend
// on the headers that the user included before.

#include <unitscale/base/memory.hpp>

#include <Eigen/Core>
#if __has_include(<xtensor/containers/xarray.hpp>)
#include <xtensor/containers/xarray.hpp>
#else
#include <xtensor/xarray.hpp>
#endif

#include <cstddef>
#include <type_traits>

namespace unitscale {

/// Sizes of a tensor's dimensions, outermost first. Up to six without allocation.
using Shape = xt::svector<std::size_t, 6>;

/// Steps between the elements of each dimension: negative where it is walked backwards, 0 where it is repeated.
using Strides = xt::svector<std::ptrdiff_t, 6>;

/// A few values, up to eight without allocation.
template <class T>
using SmallVector = xt::svector<T, 8>;

/// The allocator of arrays. It leaves new elements uninitialised. Half and BFloat16 have constructors, so xtensor would
/// set each of their new elements to zero: one more pass over every tensor.
template <class T>
class ArrayAllocator : public PoolAllocator<T> {
public:
    using PoolAllocator<T>::PoolAllocator;
    template <class U>
    void construct(U*, U&&) const noexcept {}
    [[nodiscard]] ArrayAllocator select_on_container_copy_construction() const { return ArrayAllocator(); }
};

/// The container of a tensor's elements: row-major, 64-byte aligned, memory from a pool.
template <class T>
using Array = xt::xarray_container<xt::uvector<T, ArrayAllocator<T>>, xt::layout_type::row_major, Shape>;

/// IEEE binary16 and bfloat16 as storage types.
using Half = Eigen::half;
using BFloat16 = Eigen::bfloat16;

/// These two: elements that are converted from and to float in few instructions (tensor/half_lanes.hpp).
template <class T>
concept HalfElement = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

/// The type of sums over elements of type T (losses, statistics, reductions, products): double for double, else float.
template <class T>
using Accum = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Row-major matrices and arrays of Eigen over memory that is ours. Only maps: a container of Eigen allocates as the
/// instruction set of its translation unit demands. Units of different -march must be able to share objects.
template <class T>
using MatrixMap = Eigen::Map<Eigen::Matrix<std::remove_const_t<T>, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <class T>
using ConstMatrixMap = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <class T>
using ArrayMap = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;
template <class T>
using ConstArrayMap = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;

}  // namespace unitscale
