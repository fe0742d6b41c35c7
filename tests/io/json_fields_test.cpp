// SPDX-License-Identifier: MIT
#include <unitscale/io/json_fields.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <optional>
#include <string>

using namespace unitscale;
using namespace unitscale::io;
using Json = nlohmann::ordered_json;
using unitscale::test::error_of;

namespace {

struct Fields {
    double number = 1.5;
    int count = 2;
    std::optional<BlockFormat> blocks{};
    std::optional<int> later{};
};

template <class Visitor>
void describe(Visitor& visitor, Fields& fields) {
    visitor.field("number", fields.number);
    visitor.field("count", fields.count);
    visitor.blocks("blocks", fields.blocks);
}

Json written(Fields fields) {
    JsonWriter writer;
    describe(writer, fields);
    return writer.json();
}
Fields read(const Json& json) {
    Fields fields;
    JsonReader reader(json, "");
    describe(reader, fields);
    reader.finish();
    return fields;
}

}  // namespace

TEST_CASE("json fields: one list of fields writes and reads") {
    CHECK(written({}).dump() == R"({"number":1.5,"count":2})");
    const Fields fields = read(Json{{"count", -3}});
    CHECK(fields.number == 1.5);
    CHECK(fields.count == -3);
    CHECK(error_of([] {
              static_cast<void>(read(Json{{"number", "a"}}));
          }) == "recipe: number is \"a\"; expected a number");
    CHECK(error_of([] {
              static_cast<void>(read(Json{{"size", 1}}));
          }) == "recipe: unknown key 'size'; expected one of number, count, blocks");
}

TEST_CASE("json fields: block formats are names, or objects with their fields") {
    BlockFormat mxfp4_up = mxfp4;
    mxfp4_up.exponent = ExponentRounding::rceil;
    CHECK(written({.blocks = mxfp4_up}).at("blocks") == "mxfp4_rceil");
    BlockFormat own = mxfp4;
    own.along = 24;
    own.scale = make_format(
        {.exponent_bits = 5, .mantissa_bits = 3, .bias = 15, .specials = Specials::single_nan, .sign_bits = 0});
    own.amax_floor = 0.0;
    for (const BlockFormat& format : {mxfp4_up, own, nvfp4_square, fp8_tile}) {
        const Json json = written({.blocks = format});
        INFO(json.dump());
        CHECK(read(json).blocks == format);
    }
    CHECK(read(Json{{"blocks", nullptr}}).blocks == std::nullopt);
    const Json partial = {{"blocks", {{"element", "e2m1"}, {"along", 64}}}};
    CHECK(read(partial).blocks->along == 64);
    CHECK(read(partial).blocks->element == e2m1);
    CHECK(read(partial).blocks->scale == e8m0);
    CHECK(error_of([] {
              static_cast<void>(read(Json{{"blocks", "mxfp5"}}));
          }).starts_with("recipe: blocks: block format: unknown name 'mxfp5'; expected mxfp8_e4m3, "));
    CHECK(error_of([] {
              static_cast<void>(read(Json{{"blocks", {{"along", 1}, {"rule", "mine"}}}}));
          }).starts_with("recipe: blocks.rule is \"mine\"; expected one of transformer_engine, "));
    CHECK(known_block_format("nvfp4") == nvfp4);
    CHECK(known_block_format("e4m3") == std::nullopt);
}
