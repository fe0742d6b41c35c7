// SPDX-License-Identifier: MIT
#include <unitscale/train/early_joins.hpp>

#include "support/catch.hpp"
#include "support/thread_group.hpp"

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/fill.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

using namespace unitscale;

TEST_CASE("buckets are sent in one order, each as soon as its gradients and all buckets before it are there") {
    const Recipe recipe = find_recipe("fp32");
    std::vector<std::vector<std::vector<std::size_t>>> taken(2);
    test::in_group(2, [&](const std::shared_ptr<train::ProcessGroup>& group) {
        ScalingState state(1);
        Tape<float> tape(recipe, state);
        Parameter<float> a("a", {4}, {}), b("b", {2}, {}), frozen("frozen", {9}, {}), c("c", {2}, {}), d("d", {6}, {});
        frozen.set_requires_gradient(false);
        train::StepGradients<float> step{
            .group = group.get(), .tape = &tape, .count = 2, .parameters = {&a, &b, &frozen, &c, &d}};
        step.sums.resize(5);
        for (std::size_t r = 0; r < 2; ++r) step.nodes.push_back({r, {r, r + 1}, std::vector<train::NodeEntry>(5)});
        train::EarlyJoins<float> joins;
        joins.begin(step, 4);  // buckets: d | c, b | a
        const auto add = [&](std::size_t p, bool has) {
            train::StepGradients<float>::Part part;
            if (has) {
                part.emplace(step.parameters[p]->shape());
                fill_constant(*part, static_cast<float>(p + group->rank()));
            }
            step.sums[p].append({group->rank(), group->rank() + 1}, std::move(part));
        };
        if (group->rank() == 0) {  // the gradients come in another order than buckets
            for (const std::size_t p : {1u, 3u}) {
                add(p, true);
                joins.complete(p);
                CHECK(joins.begun() == 0);
            }
            add(4, true);
            joins.complete(4);
            CHECK(joins.begun() == 2);
            add(0, true);
            joins.complete(0);
        } else {  // and some do not come
            add(4, true);
            joins.complete(4);
            CHECK(joins.begun() == 1);
            for (const std::size_t p : {0u, 1u, 3u}) add(p, false);
            joins.complete_all();
        }
        joins.progress();
        CHECK(joins.begun() == 3);
        joins.end([&](std::span<const std::size_t> bucket, const auto& sums) {
            taken[group->rank()].emplace_back(bucket.begin(), bucket.end());
            for (std::size_t i = 0; i < bucket.size(); ++i) {
                REQUIRE(sums[i].has_value());
                const auto p = static_cast<float>(bucket[i]);
                CHECK((*sums[i])(0) == (bucket[i] == 4 ? 2 * p + 1 : p));
            }
        });
        CHECK(joins.begun() == 0);
    });
    const std::vector<std::vector<std::size_t>> buckets = {{4}, {3, 1}, {0}};
    for (const auto& order : taken) CHECK(order == buckets);
}
