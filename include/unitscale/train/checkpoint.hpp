// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/minifloat.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/optim/loss_scaler.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/tensor/backend.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/rescale.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/published_weights.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

// Training runs on disk: one safetensors file with the weights, the optimiser's state and what the library remembers.
//   decoder/block0/ffn/up/weight              data in its stored type
//   decoder/block0/ffn/up/weight.scale        F64, one element, where the scale is not 1
//   optimiser/...                             what `visit_state` names, in the stored types, with .scale likewise, or F32,
//                                             one element to a block; numbers and tables are metadata
// A file of weights alone, from here or from elsewhere, loads into any recipe; GPT-2's and Llama's under their published names.
namespace unitscale::train {

/// A parameter's facts as a checkpoint keeps them, so that what follows from them (initial scale, multipliers, learning rates) can be
/// told from the file: {"role": "weight", "fan_in": 128, "fan_out": 512, "depth": 4, "width": 128}.
[[nodiscard]] inline nlohmann::ordered_json facts_to_json(const ParameterFacts& facts) {
    return {{"role", name(facts.role)},
            {"fan_in", facts.fan_in},
            {"fan_out", facts.fan_out},
            {"depth", facts.depth},
            {"width", facts.width}};
}

/// Calls use(E{}) with the type that a file keeps codes of `format` as: that of the format, or the word itself where no type is.
template <CodeWord Code, class Use>
void with_code_type(const FloatFormat& format, const Use& use) {
    if constexpr (sizeof(Code) == 1) {
        if (format == e4m3) use(Minifloat<e4m3>{});
        else if (format == e5m2) use(Minifloat<e5m2>{});
        else use(Code{});
    } else {
        if (format == fp16) use(Half{});
        else if (format == bf16) use(BFloat16{});
        else use(Code{});
    }
}

/// Gathers weights and state, then writes them at once or not at all (SafetensorsWriter). Tensors are borrowed until `write`.
/// It is the visitor of `visit_state`. Test: tests/train/checkpoint_test.cpp
class CheckpointWriter {
public:
    template <class T>
    void weights(const std::vector<Parameter<T>*>& parameters) {
        for (const Parameter<T>* parameter : parameters) add(parameter->name(), parameter->value());
        facts(parameters);
    }
    /// Weights of linear layers (role `weight`) as codes of F, one power of two to a tensor: 2^bias x rounded to F with the largest
    /// bias that the largest magnitude allows, less `margin`; the scale is 2^-bias. The others as they are.
    template <FloatFormat F, class T>
    void quantised_weights(const std::vector<Parameter<T>*>& parameters, int margin = 0) {
        for (const Parameter<T>* parameter : parameters) {
            const Tensor<T>& value = parameter->value();
            if (parameter->facts().role != ParameterRole::weight) {
                add(parameter->name(), value);
                continue;
            }
            const int bias = amax_bias(
                F, kernels::amax(Execution{}, value.data(), static_cast<std::ptrdiff_t>(value.size())), margin);
            Tensor<Minifloat<F>> codes(value.shape());
            for (std::size_t i = 0; i < value.size(); ++i)
                codes.data()[i] = element_cast<Minifloat<F>>(std::ldexp(static_cast<double>(value.data()[i]), bias));
            writer_.add(parameter->name(), std::move(codes));
            writer_.add(parameter->name() + ".scale", Tensor<double>(Shape{1}, {std::ldexp(value.scale(), -bias)}));
        }
        facts(parameters);
    }
    /// State that is visited from now on has this in front of its names.
    void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }

    template <class T>
    void tensor(const std::string& name, const Tensor<T>& tensor) {
        add(prefix_ + name, tensor);
    }
    /// Codes of `format`, which a StoredTensor keeps.
    template <CodeWord Code>
    void codes(const std::string& name, const FloatFormat& format, const Tensor<Code>& tensor) {
        with_code_type<Code>(format, [&]<class E>(E) {
            const auto* const elements = reinterpret_cast<const E*>(tensor.data());
            writer_.add(prefix_ + name, tensor.shape(), std::span<const E>(elements, tensor.size()));
        });
        add_scale(prefix_ + name, tensor.scale());
    }
    void scalar(const std::string& name, const std::uint64_t& value) {
        writer_.set_metadata(prefix_ + name, std::to_string(value));
    }
    void number(const std::string& name, const double& value) {
        writer_.set_metadata(prefix_ + name, nlohmann::json(value).dump());
    }
    void table(const std::string& name, const std::map<std::string, double>& table) {
        writer_.set_metadata(prefix_ + name, nlohmann::json(table).dump());
    }
    void text(const std::string& name, const std::string& text) { writer_.set_metadata(prefix_ + name, text); }
    void recipe(const Recipe& recipe) { writer_.set_metadata("recipe", io::recipe_to_json(recipe).dump()); }

    /// Errors: those of SafetensorsWriter.
    void write(const std::filesystem::path& path) const { writer_.write(path); }

private:
    template <class T>
    void facts(const std::vector<Parameter<T>*>& parameters) {
        nlohmann::ordered_json json = nlohmann::ordered_json::object();
        for (const Parameter<T>* parameter : parameters) json[parameter->name()] = facts_to_json(parameter->facts());
        writer_.set_metadata("facts", json.dump());
    }
    template <class T>
    void add(const std::string& name, const Tensor<T>& tensor) {
        writer_.add(name, tensor.shape(), tensor.span());
        add_scale(name, tensor.scale());
    }
    void add_scale(const std::string& name, double scale) {
        if (scale != 1.0) writer_.add(name + ".scale", Tensor<double>(Shape{1}, {scale}));
    }

    io::SafetensorsWriter writer_{};
    std::string prefix_{};
};

/// Reads them back, whole or not at all: everything is read and checked first, `commit` then puts it where it belongs. (Tables
/// alone, of which `visit_state` shows copies, are set at once: read them last.)
/// Errors, in one line that names the file: those of SafetensorsReader; a tensor that is missing or has another shape; a number
/// that is missing or is none.
class CheckpointReader {
public:
    explicit CheckpointReader(const std::filesystem::path& path)
        : where_(concatenate("checkpoint: ", path.string())), reader_(path) {}

    [[nodiscard]] const io::SafetensorsReader& file() const noexcept { return reader_; }
    void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }

    /// The weights of a model, whatever type they are stored in, by the parameters' names or by published ones (PublishedWeights).
    /// A file without scales, for a parameter that has one: the value is kept under the parameter's scale; one that T does not hold
    /// is rounded; `notes` says so. `plain`: scales are multiplied out, as recipes need that do not propagate them.
    /// Errors: a finite weight that is infinite in T; a tensor of published weights that belongs to no parameter.
    template <class T>
    void weights(const std::vector<Parameter<T>*>& parameters, bool plain = false) {
        using Wide = std::conditional_t<std::same_as<T, double>, double, float>;
        const std::optional<PublishedWeights> published = find_published(parameters);
        std::size_t rescaled = 0, rounded = 0;
        for (Parameter<T>* parameter : parameters) {
            const std::string& name = parameter->name();
            Tensor<Wide> wide = published ? published->read<Wide>(name, parameter->shape())
                                          : reader_.read_as<Wide>(name, parameter->shape());
            set_scale(name, wide);
            if (plain) {
                wide = set_scaling(std::move(wide), 1.0);
            } else if (!reader_.contains(name + ".scale") && parameter->value().scale() != 1.0) {
                wide = set_scaling(std::move(wide), parameter->value().scale());
                ++rescaled;
            }
            Tensor<T> value(wide.shape());
            value.set_scale(wide.scale());
            bool same = true;
            for (std::size_t i = 0; i < wide.size(); ++i) {
                const Wide number = wide.data()[i];
                value.data()[i] = element_cast<T>(number);
                const auto kept = static_cast<Wide>(value.data()[i]);
                check(std::isfinite(kept) || !std::isfinite(number), where_, ": ", name, " holds ", number,
                      ", which the type of this model's weights does not");
                same = same && (kept == number || number != number);
            }
            rounded += same ? 0 : 1;
            pending_.push_back(
                [parameter, value = std::move(value)]() mutable { parameter->write() = std::move(value); });
        }
        if (rescaled > 0)
            notes_.push_back(
                concatenate(where_, ": has no scales; ", rescaled, " weights were given those of a new model"));
        if (rounded > 0)
            notes_.push_back(concatenate(where_, ": ", rounded, " weights were rounded to the type of this model's"));
    }

    /// Error: a parameter whose facts are not those that it was trained with, since its learning rate may be another one now. Files
    /// without facts pass.
    template <class T>
    void facts(const std::vector<Parameter<T>*>& parameters) const {
        const auto found = reader_.metadata().find("facts");
        if (found == reader_.metadata().end()) return;
        const auto json = nlohmann::ordered_json::parse(found->second, nullptr, false);
        check(json.is_object(), where_, ": its facts are not a JSON object");
        for (const Parameter<T>* parameter : parameters) {
            const auto entry = json.find(parameter->name());
            const nlohmann::ordered_json own = facts_to_json(parameter->facts());
            check(entry == json.end() || *entry == own, where_, ": ", parameter->name(), " was trained as ",
                  entry == json.end() ? "" : entry->dump().substr(0, 120), "; here it is ", own.dump());
        }
    }

    /// State is taken in its stored type only: codes of another format would be other numbers. Scales that are a tensor of their
    /// own (those of blocks) come before what they scale. The tensor keeps its memory.
    template <class T>
    void tensor(const std::string& name, Tensor<T>& tensor) {
        elements<T>(name, tensor);
    }
    template <CodeWord Code>
    void codes(const std::string& name, const FloatFormat& format, Tensor<Code>& tensor) {
        with_code_type<Code>(format, [&]<class E>(E) { elements<E>(name, tensor); });
    }
    void scalar(const std::string& name, std::uint64_t& value) {
        const std::string& text = metadata(name);
        std::uint64_t found = 0;
        const auto read = std::from_chars(text.data(), text.data() + text.size(), found);
        check(read.ec == std::errc() && read.ptr == text.data() + text.size(), where_, ": ", prefix_, name, " is '",
              text.substr(0, 40), "'; expected a whole number");
        pending_.push_back([&value, found] { value = found; });
    }
    void number(const std::string& name, double& value) {
        const auto json = nlohmann::json::parse(metadata(name), nullptr, false);
        check(json.is_number(), where_, ": ", prefix_, name, " is '", metadata(name).substr(0, 40),
              "'; expected a number");
        pending_.push_back([&value, found = json.get<double>()] { value = found; });
    }
    void table(const std::string& name, std::map<std::string, double>& table) const {
        const auto json = nlohmann::json::parse(metadata(name), nullptr, false);
        bool numbers = json.is_object();
        if (numbers)
            for (const auto& entry : json) numbers = numbers && entry.is_number();
        check(numbers, where_, ": ", prefix_, name, " is not a table of numbers");
        table = json.get<std::map<std::string, double>>();
    }
    [[nodiscard]] const std::string& text(const std::string& name) const { return metadata(name); }
    [[nodiscard]] Recipe recipe() const {
        const auto found = reader_.metadata().find("recipe");
        check(found != reader_.metadata().end(), where_, ": has no recipe");
        const auto json = nlohmann::ordered_json::parse(found->second, nullptr, false);
        check(!json.is_discarded(), where_, ": its recipe is not JSON");
        return io::recipe_from_json(json);
    }

    /// Puts the tensors that were read in place.
    void commit() {
        for (auto& put : pending_) put();
        pending_.clear();
    }
    /// What was not in the file and was made up for, one line each.
    [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

private:
    /// The elements of `tensor`, which the file has as E, of the same size.
    template <class E, class T>
    void elements(const std::string& name, Tensor<T>& tensor) {
        static_assert(sizeof(E) == sizeof(T));
        const std::string full = prefix_ + name;
        if (name.ends_with(".scale")) block_scales_.insert(full);
        Tensor<E> value = reader_.tensor<E>(full, tensor.shape());
        if (!block_scales_.contains(full + ".scale")) set_scale(full, value);
        pending_.push_back([&tensor, value = std::move(value)] {
            std::memcpy(static_cast<void*>(tensor.data()), value.data(), tensor.span().size_bytes());
            tensor.set_scale(value.scale());
        });
    }
    /// None: the file has one of the parameters by its own name, or no published one.
    template <class T>
    [[nodiscard]] std::optional<PublishedWeights> find_published(const std::vector<Parameter<T>*>& parameters) const {
        std::vector<std::string> names;
        for (const Parameter<T>* parameter : parameters) names.push_back(parameter->name());
        const bool own =
            std::any_of(names.begin(), names.end(), [&](const std::string& name) { return reader_.contains(name); });
        if (own) return std::nullopt;
        std::optional<PublishedWeights> published = PublishedWeights::find(reader_, where_);
        if (published) published->check_all_used(names);
        return published;
    }

    /// Gives a tensor the scale that the file has for it.
    template <class T>
    void set_scale(const std::string& name, Tensor<T>& value) const {
        if (!reader_.contains(name + ".scale")) return;
        const Tensor<double> found = reader_.read_as<double>(name + ".scale");
        const double scale = found.size() == 1 ? found.data()[0] : 0.0;
        check(scale > 0.0 && scale <= std::numeric_limits<double>::max(), where_, ": ", name, ".scale is ", scale,
              "; expected one positive finite number");
        value.set_scale(scale);
    }
    [[nodiscard]] const std::string& metadata(const std::string& name) const {
        const auto found = reader_.metadata().find(prefix_ + name);
        check(found != reader_.metadata().end(), where_, ": has no '", prefix_, name,
              "'; is it a file of weights alone?");
        return found->second;
    }

    std::string where_;
    io::SafetensorsReader reader_;
    std::string prefix_{};
    std::set<std::string> block_scales_{};
    std::vector<std::function<void()>> pending_{};
    std::vector<std::string> notes_{};
};

/// What a training run is made of, borrowed.
template <class T, class Optimiser>
struct RunParts {
    std::vector<Parameter<T>*> parameters;
    Optimiser& optimiser;
    ScalingState& state;
    optim::LossScaler& scaler;
};

/// All of a run: weights, optimiser, ScalingState (step, seed, plan, past magnitudes), loss scale, recipe, and `more`, numbers of
/// the caller's. Random streams and the place in the data are functions of seed and step. Errors: those of SafetensorsWriter.
template <class T, class Optimiser>
void save_run(const std::filesystem::path& path, const RunParts<T, Optimiser>& run, const Recipe& recipe,
              const std::map<std::string, double>& more = {}, const std::map<std::string, std::string>& texts = {}) {
    CheckpointWriter writer;
    writer.weights(run.parameters);
    writer.recipe(recipe);
    writer.set_prefix("optimiser/");
    run.optimiser.visit_state(writer);
    writer.set_prefix("loss_scaler/");
    run.scaler.visit_state(writer);
    writer.set_prefix("state/");
    run.state.visit_state(writer);
    writer.set_prefix("run/");
    writer.table("numbers", more);
    for (const auto& [name, text] : texts) writer.text(name, text);
    writer.write(path);
}

/// Restores it: the run then goes on with the bits that it would have had. Returns `more`. `texts` that are given must be what was
/// saved. Errors: those of CheckpointReader, and `checkpoint: PATH: its vocabulary is not this run's`; nothing is changed then.
template <class T, class Optimiser>
std::map<std::string, double> load_run(const std::filesystem::path& path, const RunParts<T, Optimiser>& run,
                                       const std::map<std::string, std::string>& texts = {}) {
    CheckpointReader reader(path);
    std::map<std::string, double> more, ignored;
    reader.set_prefix("run/");
    reader.table("numbers", more);
    for (const auto& [name, text] : texts)
        check(reader.text(name) == text, "checkpoint: ", path.string(), ": its ", name, " is not this run's");
    reader.weights(run.parameters);
    reader.facts(run.parameters);
    reader.set_prefix("optimiser/");
    run.optimiser.visit_state(reader);
    reader.set_prefix("loss_scaler/");
    run.scaler.visit_state(reader);
    reader.set_prefix("state/");
    for (const char* name : {"plan", "amax"}) reader.table(name, ignored);
    run.state.visit_state(reader);
    reader.commit();
    return more;
}

/// Weights alone. Errors: those of CheckpointWriter and CheckpointReader.
template <class T>
void save_weights(const std::filesystem::path& path, const std::vector<Parameter<T>*>& parameters) {
    CheckpointWriter writer;
    writer.weights(parameters);
    writer.write(path);
}
/// Returns notes, as CheckpointReader has them.
template <class T>
std::vector<std::string> load_weights(const std::filesystem::path& path, const std::vector<Parameter<T>*>& parameters,
                                      bool plain = false) {
    CheckpointReader reader(path);
    reader.weights(parameters, plain);
    reader.commit();
    return reader.notes();
}

}  // namespace unitscale::train
