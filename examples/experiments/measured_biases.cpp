// SPDX-License-Identifier: MIT
#include "experiments/measured_biases.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/scaling/operand_rule.hpp>
#include <unitscale/scaling/tensor_scale.hpp>

#include <algorithm>

namespace unitscale::experiments {

nlohmann::ordered_json measured_biases(const ScalingState& state) {
    nlohmann::ordered_json biases;
    for (const ScalingState::Product& product : state.products()) {
        const ProductFormats& formats = product.formats;
        const bool attention = product.kind == ProductKind::attention;
        const auto add = [&](const OperandRule& rule, std::size_t place) {
            if (rule.element && rule.scale.has_measured_bias() && state.has_bias(product.site, place))
                biases[concatenate(state.path(product.site), '|', operand_names[place])] =
                    state.last_bias(product.site, place);
        };
        if (!attention)
            for (const OperandRole role : {OperandRole::activation, OperandRole::weight, OperandRole::gradient})
                add(formats.rule(role), operand_place(role));
        for (std::size_t i = 0; i < slot_count; ++i) {
            const auto slot = static_cast<OperandSlot>(i);
            if (is_of_attention(slot) != attention) continue;
            // Linear ops keep a bias for each role and for each slot with a rule of its own. Attention keeps one for
            // each tensor, and for its second use if either use has a rule of its own.
            const bool own = formats.own(slot) || (attention && formats.own(first_use(slot)));
            if (own || (attention && slot == first_use(slot))) add(product.rule(slot), operand_place(slot));
        }
    }
    return biases;
}

int OperandBiases::mode() const {
    return std::max_element(counts.begin(), counts.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
}

double OperandBiases::share() const {
    std::size_t steps = 0;
    for (const auto& [bias, count] : counts) steps += count;
    return static_cast<double>(counts.at(mode())) / static_cast<double>(steps);
}

void BiasCounts::add(const ScalingState& state) {
    const nlohmann::ordered_json biases = measured_biases(state);
    for (const auto& item : biases.items()) {
        const std::string& operand = item.key();
        auto found = std::find_if(operands_.begin(), operands_.end(),
                                  [&](const OperandBiases& known) { return known.operand == operand; });
        if (found == operands_.end()) found = operands_.insert(found, {.operand = operand});
        ++found->counts[item.value().get<int>()];
    }
}

std::vector<std::vector<std::string>> BiasCounts::rows() const {
    std::vector<std::vector<std::string>> rows = {{"layer", "role", "bias", "share", "least", "largest"}};
    for (const OperandBiases& biases : operands_) {
        const std::size_t bar = biases.operand.rfind('|');
        rows.push_back({biases.operand.substr(0, bar), biases.operand.substr(bar + 1), std::to_string(biases.mode()),
                        io::cell("%.1f %%", 100.0 * biases.share()), std::to_string(biases.counts.begin()->first),
                        std::to_string(biases.counts.rbegin()->first)});
    }
    return rows;
}

nlohmann::ordered_json BiasCounts::json() const {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    for (const OperandBiases& biases : operands_)
        for (const auto& [bias, count] : biases.counts) json[biases.operand][std::to_string(bias)] = count;
    return json;
}

}  // namespace unitscale::experiments
