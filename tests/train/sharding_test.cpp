// SPDX-License-Identifier: MIT
#include <unitscale/train/sharding.hpp>

#include "support/catch.hpp"
#include "support/thread_group.hpp"

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/tensor/fill.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

using namespace unitscale;

TEST_CASE("the largest parameter goes to the process with the fewest elements") {
    using Numbers = std::vector<std::size_t>;
    CHECK(train::owners_of(Numbers{5, 9, 5, 4, 1}, 2) == Numbers{1, 0, 1, 0, 1});
    CHECK(train::owners_of(Numbers{3, 3, 3}, 4) == Numbers{0, 1, 2});
    CHECK(train::owners_of(Numbers{3, 4}, 1) == Numbers{0, 0});
    CHECK(train::owners_of(Numbers{}, 2).empty());
    CHECK(train::name(train::Sharding::none) == "none");
    CHECK(train::name(train::Sharding::optimiser) == "optimiser");
    CHECK(train::name(train::Sharding::gradients) == "gradients");
}

TEST_CASE("every process gets values and scales from their owners, in messages of any size") {
    const std::vector<std::size_t> owners = {2, 0, 2, 1};
    for (const std::size_t bucket : {1u, 12u, 1000u})
        test::in_group(3, [&](const std::shared_ptr<train::ProcessGroup>& group) {
            Parameter<float> a("a", {5}, {}), b("b", {2, 4}, {}), c("c", {1}, {}), d("d", {7}, {});
            const std::vector<Parameter<float>*> all = {&a, &b, &c, &d};
            for (std::size_t p = 0; p < 4; ++p) {
                fill_constant(all[p]->write(), static_cast<float>(10 * group->rank() + p));
                all[p]->write().set_scale(static_cast<double>(1 + group->rank()));
            }
            const std::uint64_t version = d.version();
            const std::size_t sent = train::share_values<float>(*group, Execution{}, all, owners, bucket);
            CHECK(sent == std::vector<std::size_t>{2 * (8 + 32), 2 * (8 + 28), 2 * (8 + 20 + 8 + 4)}[group->rank()]);
            for (std::size_t p = 0; p < 4; ++p) {
                CHECK(all[p]->scale() == static_cast<double>(1 + owners[p]));
                for (const float x : all[p]->value().span()) CHECK(x == static_cast<float>(10 * owners[p] + p));
            }
            CHECK((d.version() > version) == (group->rank() != 1));
        });
}
