// SPDX-License-Identifier: MIT
#include <unitscale/io/safetensors_weights.hpp>

#include <unitscale/scaling/tensor_scale.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

using namespace unitscale;

namespace {

CodedWeight in_blocks(const Tensor<float>& values, const BlockFormat& format) {
    BlockCodes codes;
    encode_blocks(format, {values.data(), values.dim(0), values.dim(1), values.dim(1)}, codes);
    return CodedWeight(codes);
}

bool same(const CodedWeight& a, const CodedWeight& b) {
    const Tensor<float> x = decoded<float>(a), y = decoded<float>(b);
    return a.format() == b.format() && a.blocks() == b.blocks() && a.bytes() == b.bytes() && x.shape() == y.shape() &&
           std::equal(x.data(), x.data() + x.size(), y.data());
}

}  // namespace

TEST_CASE("coded weights: a file gives back the codes in their own size") {
    const test::TemporaryFolder folder;
    const auto [out, in] = GENERATE(table<std::size_t, std::size_t>({{64, 256}, {35, 67}}));
    CAPTURE(out, in);
    Tensor<float> values({out, in});
    fill_normal(values, {.seed = 4, .stream = 1});
    std::map<std::string, CodedWeight> weights;
    for (const FloatFormat& format : {shifted(e4m3, 6), e5m2, shifted(e3m2, -2), e2m1, e4m3fnuz})
        weights.emplace(name(format), coded_weight(values, format));
    for (const BlockFormat& format : {mxfp8_e4m3, mxfp6_e2m3, mxfp4, mxint8, nvfp4, nvfp4_square, fp8_tile, fp8_square})
        weights.emplace(name(format), in_blocks(values, format));
    for (const auto& [title, weight] : weights) {
        CAPTURE(title);
        io::SafetensorsWriter writer;
        io::add_coded_weight(writer, "w", weight);
        writer.write(folder.path() / "w.safetensors");
        const io::SafetensorsReader reader(folder.path() / "w.safetensors");
        CHECK(io::holds_codes(reader, "w"));
        CHECK(same(io::read_coded_weight(reader, "w", {out, in}), weight));
        if (out == 64) CHECK(std::filesystem::file_size(folder.path() / "w.safetensors") < weight.bytes() + 3000);
    }
    for (const FloatFormat& format : {fp32, fp16, bf16}) {
        io::SafetensorsWriter writer;
        io::add_coded_weight(writer, "w", coded_weight(values, format));
        writer.write(folder.path() / "w.safetensors");
        const io::SafetensorsReader reader(folder.path() / "w.safetensors");
        CHECK_FALSE(io::holds_codes(reader, "w"));
        CHECK(same(coded_weight(reader.read_as<float>("w"), format), coded_weight(values, format)));
    }
}

TEST_CASE("coded weights: readers of numbers read codes under one scale") {
    Tensor<float> values({3, 5});
    fill_normal(values, {.seed = 4, .stream = 1});
    const CodedWeight weight = coded_weight(values, shifted(e4m3, 6));
    const test::TemporaryFolder folder;
    io::SafetensorsWriter writer;
    io::add_coded_weight(writer, "w", weight);
    writer.write(folder.path() / "w.safetensors");
    const io::SafetensorsReader reader(folder.path() / "w.safetensors");
    const Tensor<float> numbers = reader.read_as<float>("w");
    const double scale = reader.tensor<double>("w.scale").data()[0];
    CHECK(scale == 1.0 / 64);
    for (std::size_t i = 0; i < numbers.size(); ++i)
        CHECK(static_cast<double>(numbers.data()[i]) * scale == static_cast<double>(weight.value(i / 5, i % 5)));
}

TEST_CASE("coded weights: bad files are refused in one line") {
    Tensor<float> values({16, 32});
    fill_normal(values, {.seed = 4, .stream = 1});
    const test::TemporaryFolder folder;
    const auto error = [&](const auto& change) {
        io::SafetensorsWriter writer;
        change(writer);
        writer.write(folder.path() / "w.safetensors");
        const io::SafetensorsReader reader(folder.path() / "w.safetensors");
        try {
            static_cast<void>(io::read_coded_weight(reader, "w", {16, 32}));
        } catch (const Error& found) {
            return std::string(found.what());
        }
        return std::string("none");
    };
    using Catch::Contains;
    CHECK_THAT(error([](auto& w) {
                   w.add("w", Tensor<std::uint8_t>({16, 16}));
               }),
               Contains("has no metadata 'w.code'"));
    const auto codes = [](auto& w, const char* format) {
        Tensor<std::uint8_t> bytes({16, 16});
        fill_zero(bytes);
        w.add("w", std::move(bytes));
        w.set_metadata("w.code", format);
    };
    CHECK_THAT(error([&](auto& w) { codes(w, "mxfp4"); }), Contains("holds codes, but 'w.scale' is missing"));
    CHECK_THAT(error([&](auto& w) { codes(w, "e9\nm9"); }), Contains("which is not known"));
    CHECK_THAT(error([&](auto& w) { codes(w, "e4m3"); }), Contains("expected bytes of shape [16,32]"));
    CHECK_THAT(error([&](auto& w) {
                   codes(w, "mxfp4");
                   w.add("w.scale", Tensor<std::uint8_t>({16, 2}));
               }),
               Contains("[16,2]; expected [16,1]"));
    CHECK_THAT(error([&](auto& w) {
                   codes(w, "e2m1");
                   w.add("w.scale", Tensor<double>({1}, {3.0}));
               }),
               Contains("has the scale 3; expected a power of two"));
    CHECK_THAT(error([&](auto& w) {
                   codes(w, "nvfp4");
                   Tensor<std::uint8_t> scales({16, 2});
                   std::fill_n(scales.data(), scales.size(), std::uint8_t{0x38});
                   w.add("w.scale", std::move(scales));
               }),
               Contains("no tensor 'w.number'"));
}
