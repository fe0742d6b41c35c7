// SPDX-License-Identifier: MIT
#include <unitscale/train/joint_file.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread_group.hpp"

#include <unitscale/formats/minifloat.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

std::string all_bytes(const io::SafetensorsWriter& writer) {
    std::string text;
    writer.write_to([&](std::span<const std::byte> bytes) {
        text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    });
    return text;
}

}  // namespace

TEST_CASE("processes write one file, of the bytes that one process with all tensors writes") {
    const test::TemporaryFolder folder;
    const std::filesystem::path path = folder.path() / "joint.safetensors";
    // The largest tensor takes more than a piece.
    const std::vector<Tensor<float>> tensors = {normal<float>({3, 2}, {1, 1}), normal<float>({1100000}, {1, 2}),
                                                normal<float>({5}, {1, 3})};
    const Tensor<Half> half = cast<Half>(normal<float>({7}, {1, 4}));
    const Tensor<Minifloat<e4m3fnuz>> coded({3}, {Minifloat<e4m3fnuz>{}, Minifloat<e4m3fnuz>{}, Minifloat<e4m3fnuz>{}});
    const auto add = [&](io::SafetensorsWriter& writer, std::size_t rank) {
        writer.add(concatenate("t", (rank + 1) % 3), tensors[rank]);
        writer.set_metadata(concatenate("count", rank), std::to_string(rank));
        if (rank == 1) writer.add("half", half);
        if (rank == 2) writer.add("coded", coded);
    };
    io::SafetensorsWriter whole;
    for (std::size_t rank = 0; rank < 3; ++rank) add(whole, rank);
    whole.set_checksum();
    whole.write(folder.path() / "whole.safetensors");
    std::vector<std::string> errors(3);
    test::in_group(3, [&](const std::shared_ptr<train::ProcessGroup>& group) {
        errors[group->rank()] = test::error_of([&] {
            io::SafetensorsWriter own, again;
            add(own, group->rank());
            train::JointFile(*group, own).write(group->rank() == 0 ? path : folder.path() / "none" / "x");
            add(again, group->rank());
            train::JointFile(*group, again).write(folder.path() / "none" / "x");
        });
    });
    // The second file's folder is not there: every process learns of it.
    for (const std::string& error : errors) CHECK(error.find("none") != std::string::npos);
    const auto file = [&](const char* name) {
        std::ifstream in(folder.path() / name, std::ios::binary);
        return std::string(std::istreambuf_iterator<char>(in), {});
    };
    CHECK(file("joint.safetensors") == file("whole.safetensors"));
    CHECK(file("whole.safetensors") == all_bytes(whole));
}
