// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The header of a safetensors file: element types, and reading the JSON. The files: io/safetensors.hpp.
namespace unitscale::io {

/// An element type of the file format.
struct SafetensorsType {
    std::string_view name;
    std::size_t bytes;
    std::string_view format{};  ///< number format of elements that are codes; empty for float, double and integers
};

/// In the order of the Python package: it writes tensors from the last type to the first, so that each is aligned.
inline constexpr std::array<SafetensorsType, 18> safetensors_types{{{"BOOL", 1},
                                                                    {"U8", 1},
                                                                    {"I8", 1},
                                                                    {"F8_E5M2", 1, "e5m2"},
                                                                    {"F8_E4M3", 1, "e4m3"},
                                                                    {"F8_E8M0", 1, "e8m0"},
                                                                    {"F8_E4M3FNUZ", 1, "e4m3fnuz"},
                                                                    {"F8_E5M2FNUZ", 1, "e5m2fnuz"},
                                                                    {"I16", 2},
                                                                    {"U16", 2},
                                                                    {"F16", 2, "fp16"},
                                                                    {"BF16", 2, "bf16"},
                                                                    {"I32", 4},
                                                                    {"U32", 4},
                                                                    {"F32", 4},
                                                                    {"F64", 8},
                                                                    {"I64", 8},
                                                                    {"U64", 8}}};

/// The type of a given name; nullptr if the name is unknown.
[[nodiscard]] inline const SafetensorsType* find_safetensors_type(std::string_view name) noexcept {
    const auto found = std::find_if(safetensors_types.begin(), safetensors_types.end(),
                                    [name](const SafetensorsType& type) { return type.name == name; });
    return found == safetensors_types.end() ? nullptr : &*found;
}

/// The prefix of metadata keys that name a tensor's format: `"unitscale.format.<tensor>": "e4m3fnuz"`. One-byte formats
/// other than E4M3 and E5M2 are stored as U8, one code per byte, because every reader of such files knows U8.
inline constexpr std::string_view safetensors_format_key = "unitscale.format.";

/// The facts about one tensor in a header.
struct SafetensorsEntry {
    std::string dtype{};   ///< one of `safetensors_types`, or a type unknown to this library
    std::string format{};  ///< name of the number format of elements that are codes; empty for float, double, integers
    Shape shape{};
    std::uint64_t begin = 0, end = 0;  ///< byte offsets, counted from the end of the header
    std::size_t shard = 0;             ///< number of the file, for a model in several files

    [[nodiscard]] std::uint64_t bytes() const noexcept { return end - begin; }
};

/// Element types that can be stored: float, double, integers, bool, Half, BFloat16, and Minifloats of one byte.
template <class T>
concept SafetensorsElement = std::same_as<T, float> || std::same_as<T, double> || std::integral<T> ||
    (CodedElement<T> && (sizeof(T) == 1 || format_of<T> == fp16 || format_of<T> == bf16));

/// The dtype and format that store elements of type T, as an entry without shape and place.
template <SafetensorsElement T>
[[nodiscard]] SafetensorsEntry safetensors_entry() {
    if constexpr (CodedElement<T>) {
        constexpr FloatFormat format = format_of<T>;
        constexpr std::string_view dtype = format == fp16   ? "F16"
                                           : format == bf16 ? "BF16"
                                           : format == e4m3 ? "F8_E4M3"
                                           : format == e5m2 ? "F8_E5M2"
                                                            : "U8";
        return {std::string(dtype), name(format)};
    } else if constexpr (std::same_as<T, bool>) {
        return {"BOOL"};
    } else {
        const char kind = !std::integral<T> ? 'F' : std::numeric_limits<T>::is_signed ? 'I' : 'U';
        return {kind + std::to_string(8 * sizeof(T))};
    }
}

/// Whether elements of type T hold every element of a tensor, whatever its bits are. T: a floating-point type.
template <SafetensorsElement T>
[[nodiscard]] bool holds_exactly(const SafetensorsEntry& entry) {
    const bool half = entry.dtype == "F16" || entry.dtype == "BF16";
    if constexpr (std::same_as<T, double>) return half || entry.dtype == "F32" || entry.dtype == "F64";
    else if constexpr (std::same_as<T, float>) return half || entry.dtype == "F32";
    else return entry.dtype == safetensors_entry<T>().dtype;
}

/// Text of a file for error messages: quoted, on one line, cut after 60 bytes. Control characters, line separators and
/// bytes that are not UTF-8 are written as numbers.
[[nodiscard]] inline std::string quoted_text(std::string_view text) {
    constexpr std::size_t most = 60;
    constexpr std::string_view digits = "0123456789abcdef";
    std::string result = "'";
    for (std::size_t i = 0; i < text.size();) {
        const Utf8Sequence sequence = decode_utf8_sequence(text.substr(i, 4));
        const char32_t point = sequence.code_point;
        const bool control = point < 0x20 || (point >= 0x7F && point < 0xA0);
        const bool layout = point == 0x2028 || point == 0x2029 || (point >= 0x202A && point <= 0x202E) ||
                            (point >= 0x2066 && point <= 0x2069) || point == 0xFEFF;
        const std::size_t length = std::max<std::size_t>(sequence.length, 1);
        if (i + length > most) return result + "...'";
        if (sequence.length == 0) {
            const auto byte = static_cast<unsigned char>(text[i]);
            result += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
        } else if (control || layout) {
            result += "\\u";
            for (int shift = 12; shift >= 0; shift -= 4) result += digits[point >> shift & 15];
        } else {
            result += text.substr(i, length);
        }
        i += length;
    }
    return result + "'";
}

[[nodiscard]] inline bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const std::size_t length = decode_utf8_sequence(text.substr(0, 4)).length;
        if (length == 0) return false;
        text.remove_prefix(length);
    }
    return true;
}

/// A shape as text for error messages. A long shape is cut.
[[nodiscard]] inline std::string cut_shape(const Shape& shape) {
    constexpr std::size_t most = 8;
    if (shape.size() <= most) return to_string(shape);
    std::string text = to_string(Shape(shape.begin(), shape.begin() + most));
    text.pop_back();
    return concatenate(text, ",...] of rank ", shape.size());
}

struct SafetensorsHeader {
    std::map<std::string, SafetensorsEntry, std::less<>> tensors{};
    std::map<std::string, std::string, std::less<>> metadata{};
};

/// Handles the JSON of a header piece by piece, as nlohmann-json parses it, and refuses the first piece that is out of
/// place. Nesting deeper than a header's is never followed, and nothing foreign to a header is stored.
class SafetensorsHeaderBuilder {
public:
    SafetensorsHeaderBuilder(std::string_view where, SafetensorsHeader& header) : where_(where), header_(header) {}

    bool null() { refuse("null"); }
    bool boolean(bool value) { refuse(value ? "true" : "false"); }
    bool number_integer(std::int64_t value) { refuse(std::to_string(value)); }
    bool number_float(double, const std::string& text) { refuse(quoted_text(text)); }
    bool binary(const std::vector<std::uint8_t>&) { refuse("binary data"); }

    bool number_unsigned(std::uint64_t value) {
        if (place_ == Place::extents) {
            if (value > std::numeric_limits<std::size_t>::max()) refuse(std::to_string(value));
            entry_.shape.push_back(static_cast<std::size_t>(value));
        } else if (place_ == Place::offsets && offsets_ < 2) {
            (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
        } else {
            refuse(std::to_string(value));
        }
        return true;
    }

    bool string(std::string& value) {
        if (place_ == Place::metadata_text) {
            if (!header_.metadata.emplace(name_, value).second) refuse_subject(" comes twice");
            place_ = Place::metadata;
        } else if (place_ == Place::dtype) {
            entry_.dtype = value;
            place_ = Place::tensor;
        } else {
            refuse(quoted_text(value));
        }
        return true;
    }

    bool start_object(std::size_t) {
        if (place_ == Place::file) {
            place_ = Place::names;
        } else if (place_ == Place::value && name_ == metadata_key) {
            if (std::exchange(has_metadata_, true)) refuse_subject(" comes twice");
            place_ = Place::metadata;
        } else if (place_ == Place::value) {
            entry_ = SafetensorsEntry();
            keys_ = offsets_ = 0;
            place_ = Place::tensor;
        } else {
            refuse("an object");
        }
        return true;
    }

    bool key(std::string& key) {
        if (place_ == Place::tensor) {
            constexpr std::array<std::string_view, 3> known{"dtype", "shape", "data_offsets"};
            constexpr std::array<Place, 3> places{Place::dtype, Place::shape, Place::pair};
            const auto i = static_cast<std::size_t>(std::find(known.begin(), known.end(), key) - known.begin());
            if (i == known.size()) refuse_subject(" has the unknown key " + quoted_text(key));
            if ((keys_ >> i & 1) != 0) refuse_subject(" has the key " + quoted_text(key) + " twice");
            keys_ |= 1u << i;
            place_ = places[i];
        } else {
            name_ = key;
            place_ = place_ == Place::metadata ? Place::metadata_text : Place::value;
        }
        return true;
    }

    bool end_object() {
        if (place_ == Place::tensor) {
            if (keys_ != 7) refuse_subject(" lacks one of dtype, shape and data_offsets");
            if (!header_.tensors.emplace(name_, std::move(entry_)).second) refuse_subject(" comes twice");
        }
        place_ = Place::names;
        return true;
    }

    bool start_array(std::size_t) {
        if (place_ == Place::shape) place_ = Place::extents;
        else if (place_ == Place::pair) place_ = Place::offsets;
        else refuse("a list");
        return true;
    }
    bool end_array() {
        if (place_ == Place::offsets && offsets_ < 2) refuse("an end");
        place_ = Place::tensor;
        return true;
    }

    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
        fail(where_, ": the header is no valid JSON at its byte ", position);
    }

private:
    static constexpr std::string_view metadata_key = "__metadata__";
    enum class Place { file, names, value, metadata, metadata_text, tensor, dtype, shape, extents, pair, offsets };

    [[nodiscard]] std::string subject() const {
        switch (place_) {
            case Place::file:
            case Place::names:
                return "the header";
            case Place::metadata:
            case Place::metadata_text:
                return "metadata " + quoted_text(name_);
            case Place::dtype:
                return "dtype of tensor " + quoted_text(name_);
            case Place::shape:
            case Place::extents:
                return "shape of tensor " + quoted_text(name_);
            case Place::pair:
            case Place::offsets:
                return "data_offsets of tensor " + quoted_text(name_);
            case Place::value:
            case Place::tensor:
                break;
        }
        return name_ == metadata_key ? name_ : "tensor " + quoted_text(name_);
    }
    [[nodiscard]] std::string_view expectation() const {
        switch (place_) {
            case Place::dtype:
            case Place::metadata_text:
                return "a string";
            case Place::shape:
            case Place::pair:
                return "a list";
            case Place::extents:
                return "a size";
            case Place::offsets:
                return offsets_ < 2 ? "an offset" : "an end";
            default:
                return "an object";
        }
    }
    [[noreturn]] void refuse(const std::string& found) const {
        fail(where_, ": ", subject(), ": ", found, " where ", expectation(), " belongs");
    }
    [[noreturn]] void refuse_subject(const std::string& what) const { fail(where_, ": ", subject(), what); }

    std::string_view where_;
    SafetensorsHeader& header_;
    Place place_ = Place::file;
    std::string name_{};
    SafetensorsEntry entry_{};
    unsigned keys_ = 0, offsets_ = 0;
    bool has_metadata_ = false;
};

/// Checks that the tensors fill `data_bytes` bytes without overlap and hole, and that each has as many bytes as its
/// type and shape say. For unknown types only the place is checked.
inline void check_safetensors_layout(std::string_view where, const SafetensorsHeader& header,
                                     std::uint64_t data_bytes) {
    std::vector<const std::pair<const std::string, SafetensorsEntry>*> order;
    for (const auto& tensor : header.tensors) {
        const auto& [name, entry] = tensor;
        order.push_back(&tensor);
        if (entry.begin > entry.end || entry.end > data_bytes)
            fail(where, ": tensor ", quoted_text(name), " lies at bytes ", entry.begin, " to ", entry.end, " of ",
                 data_bytes, " bytes of data");
        const SafetensorsType* const type = find_safetensors_type(entry.dtype);
        if (type == nullptr) continue;
        // Strides and counts stay in range even where an extent of 0 leaves no elements.
        constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max());
        std::uint64_t bytes = type->bytes;
        bool empty = false;
        for (const std::size_t extent : entry.shape) {
            empty = empty || extent == 0;
            if (extent == 0) continue;
            if (bytes > most / extent)
                fail(where, ": tensor ", quoted_text(name), " has the impossible shape ", cut_shape(entry.shape));
            bytes *= extent;
        }
        if (empty) bytes = 0;
        if (entry.bytes() != bytes)
            fail(where, ": tensor ", quoted_text(name), " has ", entry.bytes(), " bytes of data, but ", type->name,
                 " of shape ", cut_shape(entry.shape), " needs ", bytes);
    }
    std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
        return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
    });
    std::uint64_t at = 0;
    for (const auto* tensor : order) {
        if (tensor->second.begin != at)
            fail(where, ": tensor ", quoted_text(tensor->first), " begins at byte ", tensor->second.begin,
                 " of the data; expected ", at, ", without overlap and hole");
        at = tensor->second.end;
    }
    check(at == data_bytes, where, ": the tensors have ", at, " bytes of data, the file ", data_bytes);
}

/// Parses the header in the JSON `text`, which precedes `data_bytes` bytes of data. The result is checked, except that
/// types and formats may be unknown, and elements may be no codes of their format.
/// Errors, in the name of `where`: the text is not JSON, has foreign parts or a repeated name; the tensors do not fill
/// the data exactly; a shape and a type need another number of bytes.
/// Reference: https://huggingface.co/docs/safetensors
[[nodiscard]] inline SafetensorsHeader parse_safetensors_header(std::string_view where, std::string_view text,
                                                                std::uint64_t data_bytes) {
    // The parser would end at a zero byte.
    check(text.starts_with('{') && text.find('\0') == std::string_view::npos, where, ": the header is no JSON object");
    SafetensorsHeader header;
    SafetensorsHeaderBuilder builder(where, header);
    nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
    check_safetensors_layout(where, header, data_bytes);
    for (auto& [name, entry] : header.tensors) {
        const SafetensorsType* const type = find_safetensors_type(entry.dtype);
        if (type != nullptr) entry.format = type->format;
        if (entry.dtype != "U8") continue;
        const auto found = header.metadata.find(concatenate(safetensors_format_key, name));
        if (found != header.metadata.end()) entry.format = found->second;
    }
    return header;
}

}  // namespace unitscale::io
