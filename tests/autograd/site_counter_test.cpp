// SPDX-License-Identifier: MIT
#include <unitscale/autograd/site_counter.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <vector>

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

TEST_CASE("sites of a recurrence: in order, and found in constant time") {
    ScalingState state;
    SiteCounter sites(state);
    const auto scope = sites.scope("recurrence");
    const auto positions = std::uint32_t{50000};  // with a search from the first site on, minutes
    std::vector<Site> linear, add;
    for (int step = 0; step < 2; ++step) {
        sites.begin();
        const auto inner = sites.scope("recurrence");
        for (std::uint32_t t = 0; t < positions; ++t) {
            const Site a = sites.next("linear"), b = sites.next("add");
            if (step == 0) {
                linear.push_back(a);
                add.push_back(b);
            } else if (a != linear[t] || b != add[t]) {
                FAIL("position " << t << " has other sites in the second step");
            }
        }
    }
    CHECK(state.site_count() == 2 * positions);
    CHECK(state.path(linear[0]) == "recurrence/linear");
    CHECK(state.path(linear[777]) == "recurrence/linear.777");
    CHECK(state.path(add[777]) == "recurrence/add.777");
    CHECK(linear[777].id == 2 * 777);
}

TEST_CASE("a site with a gap before it is the one that a step reaches later") {
    ScalingState state;
    const Site third = state.site(0, "add", 2);  // as a test or a plan asks for it
    SiteCounter sites(state);
    const Site first = sites.next("add"), second = sites.next("add");
    CHECK(state.path(first) == "add");
    CHECK(state.path(second) == "add.1");
    CHECK(sites.next("add") == third);
    CHECK(state.path(sites.next("add")) == "add.3");
    CHECK(state.site_count() == 4);
}
