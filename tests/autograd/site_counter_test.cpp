// SPDX-License-Identifier: MIT
#include <unitscale/autograd/site_counter.hpp>

#include "support/catch.hpp"

using namespace unitscale;

TEST_CASE("sites are counted by op and module, the same in every step") {
    ScalingState state;
    SiteCounter sites(state);
    Site first{};
    for (int step = 0; step < 3; ++step) {
        sites.begin();
        const Site add = sites.next("add");
        if (step == 0) first = add;
        CHECK(add == first);
        CHECK(state.path(add) == "add");
        {
            const auto scope = sites.scope("block");
            CHECK(state.path(sites.next("add")) == "block/add");
            CHECK(state.path(sites.next("add")) == "block/add.1");
            const auto inner = sites.scope("ffn");
            CHECK(state.path(sites.next("linear")) == "block/ffn/linear");
        }
        CHECK(state.path(sites.next("add")) == "add.1");
        const auto again = sites.scope("block");
        CHECK(state.path(sites.next("add")) == "block/add.2");  // the module's ordinals continue
    }
    CHECK(state.site_count() == 6);
}

TEST_CASE("a step that was left inside a module begins at the root") {
    ScalingState state;
    SiteCounter sites(state);
    const auto scope = sites.scope("block");
    CHECK(state.path(sites.next("add")) == "block/add");
    sites.begin();
    CHECK(state.path(sites.next("add")) == "add");
}
