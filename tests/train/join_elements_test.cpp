// SPDX-License-Identifier: MIT
#include <unitscale/train/join_elements.hpp>

#include "support/catch.hpp"
#include "support/thread_group.hpp"

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/fill.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

using namespace unitscale;

TEST_CASE("processes add the parts of their nodes, under the scales of the tree") {
    // Three processes hold micro-batches 0; 1 and 2; 3 to 5 of six: nodes 0 | 1, 2 | 3, 4-5.
    const std::vector<train::MicroBatchRange> ranges = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 6}};
    const std::vector<std::size_t> ranks = {0, 1, 1, 2, 2};
    const std::vector<double> scales = {1.0, 4.0, 1.0, 2.0, 1.0};
    const std::size_t size = 7;
    const auto data = [](std::size_t node) {
        Tensor<float> part({7});
        fill_normal(part, {8, node}, 1.0);
        return part;
    };
    Recipe recipe = find_recipe("scalify-fp16-1");
    recipe.storage.element = ElementType::float32;
    const auto sums_of = [&](train::JoinTime time, bool owned) {
        std::vector<std::vector<train::StepGradients<float>::Part>> got(3);
        test::in_group(3, [&](const std::shared_ptr<train::ProcessGroup>& group) {
            ScalingState state(1);
            Tape<float> tape(recipe, state);
            Parameter<float> all("all", {size}, {}), few("few", {size}, {});
            train::StepGradients<float> step{
                .group = group.get(), .tape = &tape, .count = 6, .parameters = {&all, &few}, .sums = {}, .nodes = {}};
            step.sums.resize(2);
            if (owned) step.owners = {2, 0};
            const bool early = time == train::JoinTime::early;
            for (std::size_t n = 0; n < ranges.size(); ++n) {
                const bool has = n == 1 || n == 4;  // nodes with a gradient of `few`
                step.nodes.push_back(
                    {ranks[n], ranges[n], {{scales[n], !early, false}, {scales[n], has && !early, false}}});
                if (ranks[n] != group->rank()) continue;
                for (std::size_t p = 0; p < 2; ++p) {
                    train::StepGradients<float>::Part part;
                    if (p == 0 || has) {
                        part = data(n);
                        part->set_scale(scales[n]);
                    }
                    step.sums[p].append(ranges[n], std::move(part));
                }
            }
            train::ElementJoin<float> join(step, {0, 1}, time);
            for (std::size_t p = 0; p < 2; ++p)
                for (const auto& node : step.sums[p].nodes()) CHECK_FALSE(node.part.has_value());
            join.progress();
            got[group->rank()] = join.sums();
        });
        return got;
    };
    const auto add = [&](Tensor<float> left, const Tensor<float>& right) {
        add_scaled_tensor(Execution{}, left, right, recipe.propagate.rounding);
        return left;
    };
    std::vector<Tensor<float>> parts;
    for (std::size_t n = 0; n < ranges.size(); ++n) {
        parts.push_back(data(n));
        parts.back().set_scale(scales[n]);
    }
    const Tensor<float> expected = add(add(add(parts[0], parts[1]), add(parts[2], parts[3])), parts[4]),
                        of_few = add(parts[1], parts[4]);
    for (const auto time : {train::JoinTime::at_end, train::JoinTime::early})
        for (const bool owned : {false, true}) {
            const auto got = sums_of(time, owned);
            for (std::size_t rank = 0; rank < 3; ++rank) {
                REQUIRE(got[rank].size() == 2);
                for (std::size_t p = 0; p < 2; ++p) {
                    const auto& sum = got[rank][p];
                    CHECK(sum.has_value() == (!owned || rank == (p == 0 ? 2 : 0)));
                    if (!sum) continue;
                    const Tensor<float>& wanted = p == 0 ? expected : of_few;
                    CHECK(sum->scale() == wanted.scale());
                    for (std::size_t i = 0; i < size; ++i) CHECK((*sum)(i) == wanted(i));
                }
            }
        }
}
