// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/io/safetensors_header.hpp>
#include <unitscale/train/process_group.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::train {

/// A safetensors file that process 0 writes, of tensors that several processes hold. Process 0 asks for the others'
/// elements piece by piece, so it never holds more of them than a piece.
/// Test: tests/train/joint_file_test.cpp
class JointFile {
public:
    static constexpr std::size_t piece_bytes = std::size_t{1} << 22;

    /// `own`: the tensors and metadata of this process. Tensors have different names in different processes. The object
    /// borrows both arguments.
    JointFile(ProcessGroup& group, io::SafetensorsWriter& own) : group_(group), own_(own) {}

    /// Writes the file, with a checksum, whole or not at all. Its bytes equal the file of one process that holds
    /// everything. Every process calls it. Errors, in every process: those of process 0.
    void write(const std::filesystem::path& path) {
        const std::string header = concatenate(own_.data_bytes(), own_.header());
        const std::vector<std::vector<std::byte>> headers = group_.gather(std::as_bytes(std::span(header)));
        std::string error;
        if (group_.rank() > 0) {
            serve();
        } else {
            try {
                for (std::size_t r = 1; r < headers.size(); ++r) add(r, headers[r]);
                own_.set_checksum();
                own_.write(path);
            } catch (const std::exception& caught) {
                error = caught.what();
            }
            static_cast<void>(tell({}));
        }
        const auto errors = group_.gather(std::as_bytes(std::span(error)));
        if (!errors.front().empty())
            fail(std::string_view(reinterpret_cast<const char*>(errors.front().data()), errors.front().size()));
    }

private:
    /// What process 0 asks for: bytes of a tensor, which is number `tensor` of `rank`'s in the order of names.
    /// No bytes: the file is at its end.
    struct Request {
        std::uint64_t rank = 0, tensor = 0, begin = 0, bytes = 0;
    };

    /// Process 0 tells all others.
    [[nodiscard]] Request tell(Request request) {
        std::vector<std::size_t> sizes(group_.size(), 0);
        sizes.front() = sizeof request;
        Request told;
        group_.collect(std::as_bytes(std::span(&request, group_.rank() == 0 ? 1 : 0)),
                       std::as_writable_bytes(std::span(&told, 1)), sizes);
        return told;
    }
    /// Sends `mine` from the process of the request to process 0.
    void send(const Request& request, std::span<const std::byte> mine, std::span<std::byte> to) {
        std::vector<std::size_t> send_bytes(group_.size(), 0), receive_bytes(group_.size(), 0);
        send_bytes.front() = mine.size();
        if (group_.rank() == 0) receive_bytes[request.rank] = request.bytes;
        group_.exchange(mine, send_bytes, to, receive_bytes);
    }

    /// Adds the tensors and metadata of another process.
    void add(std::size_t rank, std::span<const std::byte> bytes) {
        const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        const std::size_t begin = text.find('{');
        std::uint64_t data_bytes = 0;
        std::from_chars(text.data(), text.data() + begin, data_bytes);
        const io::SafetensorsHeader header =
            io::parse_safetensors_header(concatenate("rank ", rank), text.substr(begin), data_bytes);
        for (const auto& [key, value] : header.metadata)
            if (!key.starts_with(io::safetensors_format_key)) own_.set_metadata(key, value);
        std::uint64_t tensor = 0;
        for (const auto& [name, entry] : header.tensors) {
            own_.add(name, entry, [this, rank, tensor, size = entry.bytes()](const auto& sink) {
                std::vector<std::byte> piece;
                for (std::uint64_t at = 0; at < size; at += piece.size()) {
                    piece.resize(std::min<std::uint64_t>(piece_bytes, size - at));
                    send(tell({rank, tensor, at, piece.size()}), {}, piece);
                    sink(piece);
                }
            });
            ++tensor;
        }
    }
    /// Answers the requests of process 0.
    void serve() {
        for (Request request = tell({}); request.bytes > 0; request = tell({})) {
            std::span<const std::byte> mine;
            if (request.rank == group_.rank())
                mine = own_.elements(request.tensor).subspan(request.begin, request.bytes);
            send(request, mine, {});
        }
    }

    ProcessGroup& group_;
    io::SafetensorsWriter& own_;
};

}  // namespace unitscale::train
