// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/format.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <locale>
#include <ostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace unitscale {

/// An element type's name: float, double, int32, uint8, bool. Half, BFloat16 and Minifloat have the format's name:
/// fp16, e4m3.
template <class T>
[[nodiscard]] std::string type_name() {
    if constexpr (CodedElement<T>) return name(format_of<T>);
    else if constexpr (std::is_same_v<T, bool>) return "bool";
    else if constexpr (std::is_same_v<T, float>) return "float";
    else if constexpr (std::is_same_v<T, double>) return "double";
    else return (std::is_signed_v<T> ? "int" : "uint") + std::to_string(8 * sizeof(T));
}

/// A longer axis is printed as its first and last three elements with `...` between.
inline constexpr std::size_t printed_extent = 8;

/// The printed indices of an axis; `extent` itself stands for the gap.
[[nodiscard]] inline std::vector<std::size_t> printed_indices(std::size_t extent) {
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < extent; ++i) {
        if (extent <= printed_extent || i < 3 || i >= extent - 3) indices.push_back(i);
        else if (i == 3) indices.push_back(extent);
    }
    return indices;
}

/// Writes the elements of axis `axis` and the axes inside it, the first at `begin`, as cells of one width. `write` is
/// called with the number of each element.
template <class Write>
void print_axis(std::ostream& out, const Shape& shape, std::size_t axis, std::size_t begin, const Write& write) {
    if (axis == shape.size()) return write(begin);
    const bool innermost = axis + 1 == shape.size();
    std::size_t size = 1;
    for (std::size_t k = axis + 1; k < shape.size(); ++k) size *= shape[k];
    bool first = true;
    out << '[';
    for (const std::size_t i : printed_indices(shape[axis])) {
        if (!first && innermost) out << ", ";
        else if (!first) out << ',' << std::string(shape.size() - axis - 1, '\n') << std::string(axis + 1, ' ');
        first = false;
        if (i == shape[axis]) out << "...";
        else print_axis(out, shape, axis + 1, begin + i * size, write);
    }
    out << ']';
}

/// Writes type, shape and (where it is not 1) scale on one line. The values data * scale follow in nested brackets,
/// aligned, with four significant digits. Long axes are cut short:
///   float [2,3], values = data * 0.5
///   [[  1,  2.5, -0.125],
///    [0.5, 1000,    nan]]
/// Test: tests/tensor/print_test.cpp
template <class T>
std::ostream& operator<<(std::ostream& out, const Tensor<T>& tensor) {
    std::ostringstream text;  // a stream of its own: takes no flags, precision or locale from `out`
    text.imbue(std::locale::classic());
    text << type_name<T>() << ' ' << to_string(tensor.shape());
    if (tensor.scale() != 1.0) text << ", values = data * " << tensor.scale();
    text << '\n';
    if (tensor.empty()) return out << text.str() << "[]";

    const auto cell = [&](std::size_t i) {
        std::ostringstream number;
        number.imbue(std::locale::classic());
        number.precision(4);
        if constexpr (std::integral<T>) {
            if (tensor.scale() == 1.0) number << +tensor.data()[i];
            else number << static_cast<double>(tensor.data()[i]) * tensor.scale();
        } else {
            number << widest(tensor.data()[i]) * tensor.scale();
        }
        return number.str();
    };
    std::size_t width = 0;
    std::ostringstream unused;
    print_axis(unused, tensor.shape(), 0, 0, [&](std::size_t i) { width = std::max(width, cell(i).size()); });
    print_axis(text, tensor.shape(), 0, 0, [&](std::size_t i) {
        const std::string number = cell(i);
        text << std::string(width - number.size(), ' ') << number;
    });
    return out << text.str();
}

}  // namespace unitscale
