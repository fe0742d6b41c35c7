// SPDX-License-Identifier: MIT
#include <unitscale/scaling/parameter_facts.hpp>

#include "support/catch.hpp"

using namespace unitscale;

TEST_CASE("parameter facts: names of roles") {
    CHECK(name(ParameterRole::weight) == "weight");
    CHECK(name(ParameterRole::bias) == "bias");
    CHECK(name(ParameterRole::norm) == "norm");
    CHECK(name(ParameterRole::embedding) == "embedding");
    CHECK(name(ParameterRole::readout) == "readout");
}

TEST_CASE("parameter facts: the stream's width is the fact, or the fan on its side") {
    CHECK(stream_width({.role = ParameterRole::weight, .fan_in = 352, .fan_out = 128, .width = 128}) == 128);
    CHECK(stream_width({.role = ParameterRole::weight, .fan_in = 64, .fan_out = 176}) == 64);
    CHECK(stream_width({.role = ParameterRole::readout, .fan_in = 64, .fan_out = 50}) == 64);
    CHECK(stream_width({.role = ParameterRole::embedding, .fan_in = 50, .fan_out = 64}) == 64);
    CHECK(stream_width({.role = ParameterRole::norm, .fan_in = 1, .fan_out = 32}) == 32);
}
