// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/safetensors_checksum.hpp>
#include <unitscale/io/safetensors_header.hpp>
#include <unitscale/io/safetensors_reader.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// safetensors files: named tensors and a map of strings. The file layout is:
//   - the length of the header (8 bytes, little-endian)
//   - the header: JSON, padded with blanks to a multiple of 8 bytes
//   - the tensors' elements, row-major and little-endian, one tensor after the other
// The Python package safetensors reads and writes these files too. This header needs nlohmann-json.
// Reference: https://huggingface.co/docs/safetensors
namespace unitscale::io {

/// Collects named tensors, then writes them to a file:
///   SafetensorsWriter writer;
///   writer.add("weight", weight);            // borrowed until write(); a temporary is kept
///   writer.set_metadata("step", "100");
///   writer.write("model.safetensors");
/// The file is replaced at once or not at all, by AtomicFile. Equal tensors and metadata give equal bytes, in whatever
/// order they are added. The bytes also equal the output of the Python package. (With more than one piece of metadata,
/// the order of the Python package is random.)
/// Errors, naming the tensor: a name that is empty, not UTF-8, repeated or "__metadata__"; a scale other than 1. A file
/// has no place for the scale: add the elements and store the scale separately.
/// Test: tests/io/safetensors_test.cpp
class SafetensorsWriter {
public:
    /// Adds a tensor's elements. The tensor must live, and not change, until the last write().
    template <SafetensorsElement T>
    void add(std::string_view name, const Tensor<T>& tensor) {
        check_scale(name, tensor.scale());
        add(name, tensor.shape(), tensor.span());
    }
    template <SafetensorsElement T>
    void add(std::string_view name, Tensor<T>&& tensor) {
        check_scale(name, tensor.scale());
        const auto kept = std::make_shared<const Tensor<T>>(std::move(tensor));
        add(name, kept->shape(), kept->span());
        tensors_.find(name)->second.owner = kept;
    }
    /// Adds elements in row-major order, borrowed. Error: the number of elements does not fit the shape.
    template <SafetensorsElement T>
    void add(std::string_view name, const Shape& shape, std::span<const T> elements) {
        check(elements.size() == element_count(shape), where(name), " of shape ", shape_text(shape), " has ",
              element_count(shape), " elements, but ", elements.size(), " were given");
        check(!name.empty(), "safetensors: a tensor needs a name");
        check(name != "__metadata__", where(name), ": the name is taken by the metadata");
        check(is_utf8(name), where(name), ": the name is not UTF-8");
        SafetensorsEntry entry = safetensors_entry<T>();
        entry.shape = shape;
        const bool added =
            tensors_.try_emplace(std::string(name), std::move(entry), std::as_bytes(elements), nullptr).second;
        check(added, where(name), " is there already");
    }
    /// Takes the bytes of a tensor's elements, piece by piece, in order.
    using Sink = std::function<void(std::span<const std::byte>)>;
    /// Adds a tensor that is in memory piece by piece only: each(sink) gives the elements of `entry`'s type and shape
    /// to the sink, as `entry.bytes()` bytes. It is called once for the checksum and once for each write.
    void add(std::string_view name, const SafetensorsEntry& entry, std::function<void(const Sink&)> each) {
        const bool added = tensors_.try_emplace(std::string(name), entry, std::move(each)).second;
        check(added, where(name), " is there already");
    }
    [[nodiscard]] bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }

    /// Sets a text that is stored with the tensors. A later value for a key replaces the earlier one. Errors: text that
    /// is not UTF-8; a key that begins with `safetensors_format_key`, the prefix of the keys that store tensors'
    /// formats.
    void set_metadata(std::string_view key, std::string_view value) {
        check(is_utf8(key) && is_utf8(value), "safetensors: metadata ", quoted_text(key), " are not UTF-8");
        check(!key.starts_with(safetensors_format_key), "safetensors: metadata ", quoted_text(key),
              ": such keys name tensors' formats");
        metadata_.insert_or_assign(std::string(key), std::string(value));
    }
    /// Sets the metadata `safetensors_checksum_key`. What is added or set afterwards is not in the checksum.
    void set_checksum() {
        const auto each = [this](const auto& sink) {
            for (const Item* item : file_order()) item->second.give(sink);
        };
        set_metadata(safetensors_checksum_key, safetensors_checksum(each, metadata_));
    }

    /// Writes the file. Errors: the errors of AtomicFile; a header above `safetensors_header_limit`.
    void write(const std::filesystem::path& path) const {
        AtomicFile file("safetensors", path);
        write_to([&file](std::span<const std::byte> bytes) { file.write(bytes); });
        file.commit();
    }

    /// Calls sink(std::span<const std::byte>) with the file's bytes, piece by piece, in order.
    template <class Sink>
    void write_to(const Sink& sink) const {
        std::string header = std::string(8, '\0') + this->header();
        header.append((8 - header.size() % 8) % 8, ' ');
        const std::uint64_t length = header.size() - 8;
        check(length <= safetensors_header_limit, "safetensors: a header of ", length, " bytes is above the limit of ",
              safetensors_header_limit);
        for (std::size_t i = 0; i < 8; ++i) header[i] = static_cast<char>(length >> 8 * i & 0xFF);
        sink(std::as_bytes(std::span<const char>(header)));
        for (const Item* item : file_order()) item->second.give(sink);
    }

    /// The header, as JSON, and the bytes of all elements.
    [[nodiscard]] std::string header() const {
        std::string text;
        append_header(text, file_order());
        return text;
    }
    [[nodiscard]] std::uint64_t data_bytes() const {
        std::uint64_t sum = 0;
        for (const auto& [name, source] : tensors_) sum += source.size();
        return sum;
    }
    /// The elements of tensor number `index` in the order of names, which is in memory.
    [[nodiscard]] std::span<const std::byte> elements(std::size_t index) const {
        return std::next(tensors_.begin(), static_cast<std::ptrdiff_t>(index))->second.bytes;
    }

private:
    struct Source {
        SafetensorsEntry entry;
        std::span<const std::byte> bytes;
        std::shared_ptr<const void> owner;        ///< owner of the bytes; null if they are borrowed
        std::function<void(const Sink&)> each{};  ///< gives the bytes, in place of `bytes`

        Source(SafetensorsEntry e, std::span<const std::byte> b, std::shared_ptr<const void> o)
            : entry(std::move(e)), bytes(b), owner(std::move(o)) {}
        Source(SafetensorsEntry e, std::function<void(const Sink&)> from)
            : entry(std::move(e)), each(std::move(from)) {}

        [[nodiscard]] std::uint64_t size() const noexcept { return each ? entry.bytes() : bytes.size(); }
        template <class To>
        void give(const To& sink) const {
            if (each) each(sink);
            else sink(bytes);
        }
    };
    using Item = std::pair<const std::string, Source>;

    [[nodiscard]] static std::string where(std::string_view name) { return "safetensors: tensor " + quoted_text(name); }
    static void check_scale(std::string_view name, double scale) {
        check(scale == 1.0, where(name), " has scale ", scale, "; a file holds plain numbers only");
    }

    /// Orders tensors by descending type, so that every tensor is aligned to its elements, then by name.
    [[nodiscard]] std::vector<const Item*> file_order() const {
        std::vector<const Item*> order;
        for (const Item& item : tensors_) order.push_back(&item);
        std::stable_sort(order.begin(), order.end(), [](const Item* a, const Item* b) {
            return find_safetensors_type(a->second.entry.dtype) > find_safetensors_type(b->second.entry.dtype);
        });
        return order;
    }

    void append_header(std::string& text, const std::vector<const Item*>& order) const {
        const auto json = [](std::string_view string) { return nlohmann::json(string).dump(); };
        auto metadata = metadata_;
        for (const auto& [name, source] : tensors_)
            if (source.entry.dtype == "U8" && !source.entry.format.empty())
                metadata.emplace(concatenate(safetensors_format_key, name), source.entry.format);
        char separator = '{';
        if (!metadata.empty()) text += "{\"__metadata__\":";
        for (const auto& [key, value] : metadata) {
            text.append(1, separator).append(json(key)).append(1, ':').append(json(value));
            separator = ',';
        }
        if (!metadata.empty()) text += '}';
        std::uint64_t at = 0;
        for (const Item* item : order) {
            const auto& [name, source] = *item;
            text.append(1, separator).append(json(name)).append(":{\"dtype\":\"").append(source.entry.dtype);
            text.append("\",\"shape\":").append(to_string(source.entry.shape)).append(",\"data_offsets\":[");
            text.append(std::to_string(at)).append(1, ',');
            at += source.size();
            text.append(std::to_string(at)).append("]}");
            separator = ',';
        }
        text += separator == '{' ? "{}" : "}";
    }

    std::map<std::string, Source, std::less<>> tensors_{};
    std::map<std::string, std::string, std::less<>> metadata_{};
};

}  // namespace unitscale::io
