// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/io/safetensors_codes.hpp>
#include <unitscale/io/safetensors_weights.hpp>
#include <unitscale/optim/loss_scaler.hpp>
#include <unitscale/optim/optimiser.hpp>
#include <unitscale/optim/rescale_state.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/rescale.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/joint_file.hpp>
#include <unitscale/train/process_group.hpp>
#include <unitscale/train/published_weights.hpp>
#include <unitscale/train/remainders.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
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

// Training runs on disk: one safetensors file with the weights, the optimiser's state and the ScalingState.
//   decoder/block0/ffn/up/weight              data in its stored type
//   decoder/block0/ffn/up/weight.scale        F64, one element, where the scale is not 1
//   decoder/block0/ffn/up/weight, ...         codes and their scales (io/safetensors_weights.hpp), of a coded parameter
//   optimiser/...                             tensors that `visit_state` names, in their stored types
//   optimiser/... .scale                      F64, one element, where the scale is not 1; or F32, one element per block
//   remainders/...                            error feedback's, where a run has it (train/remainders.hpp)
// Numbers and tables that `visit_state` names are metadata. A file of weights alone loads into any recipe, whether this
// library or another program wrote it. The weights of GPT-2, Llama and BERT load under their published names.
namespace unitscale::train {

/// Gathers weights and state, then writes them at once or not at all (SafetensorsWriter).
/// Tensors are borrowed until `write`. The class is a visitor for `visit_state`. Test: tests/train/checkpoint_test.cpp
class CheckpointWriter {
public:
    /// Values, and codes where a parameter keeps its value so.
    template <class T>
    void weights(const std::vector<Parameter<T>*>& parameters) {
        for (const Parameter<T>* parameter : parameters)
            if (const CodedWeight* const codes = parameter->coded_value())
                io::add_coded_weight(writer_, parameter->name(), *codes);
            else add(parameter->name(), parameter->value());
        facts(parameters);
    }
    /// Names of state that is visited from now on begin with `prefix`.
    void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }

    template <class T>
    void tensor(const std::string& name, const Tensor<T>& tensor) {
        add(prefix_ + name, tensor);
    }
    /// Codes of `format`, from a StoredTensor.
    template <CodeWord Code>
    void codes(const std::string& name, const FloatFormat& format, const Tensor<Code>& tensor) {
        io::with_code_type<Code>(format, [&]<class E>(E) {
            const auto* const elements = reinterpret_cast<const E*>(tensor.data());
            writer_.add(prefix_ + name, tensor.shape(), std::span<const E>(elements, tensor.size()));
        });
        add_scale(prefix_ + name, tensor.scale());
    }
    void scalar(const std::string& name, const std::uint64_t& value) {
        writer_.set_metadata(prefix_ + name, std::to_string(value));
    }
    void number(const std::string& name, const double& value) { text(name, nlohmann::json(value).dump()); }
    void table(const std::string& name, const std::map<std::string, double>& table) {
        text(name, nlohmann::json(table).dump());
    }
    void text(const std::string& name, const std::string& text) { writer_.set_metadata(prefix_ + name, text); }
    void recipe(const Recipe& recipe) { writer_.set_metadata("recipe", io::recipe_to_json(recipe).dump()); }

    /// Writes the file, with a checksum. With a group, every process has its own state, and process 0 writes one file
    /// for all (JointFile). Errors: the errors of SafetensorsWriter.
    void write(const std::filesystem::path& path, ProcessGroup* group = nullptr) {
        if (group != nullptr) return JointFile(*group, writer_).write(path);
        writer_.set_checksum();
        writer_.write(path);
    }

private:
    template <class T>
    void facts(const std::vector<Parameter<T>*>& parameters) {
        nlohmann::ordered_json json = nlohmann::ordered_json::object();
        for (const Parameter<T>* each : parameters) json[each->name()] = io::facts_to_json(each->facts());
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

/// Reads a checkpoint back, whole or not at all.
/// Everything is read and checked first; `commit` then copies it to its places. Weights that their type holds exactly
/// are read by `commit`: the model is in memory once. Only an error of the disk in `commit` leaves a part.
/// Tables are an exception, because `visit_state` shows copies of them: they are set at once, so read them last.
/// Errors, in one line that names the file: the errors of SafetensorsReader; a checksum (`check_checksum`) that is not
/// the content's; a tensor that is missing or has another shape; a number that is missing or not a number; a reader
/// that is destroyed before what it read was committed, unless an error is on its way.
class CheckpointReader {
public:
    explicit CheckpointReader(const std::filesystem::path& path)
        : where_(concatenate("checkpoint: ", path.string())), reader_(path) {
        reader_.check_checksum();
    }
    CheckpointReader(const CheckpointReader&) = delete;
    CheckpointReader& operator=(const CheckpointReader&) = delete;
    ~CheckpointReader() noexcept(false) {
        if (pending_.empty() || std::uncaught_exceptions() > exceptions_) return;
        fail(where_, ": was read but not put in place; expected commit()");
    }

    [[nodiscard]] const io::SafetensorsReader& file() const noexcept { return reader_; }
    /// The begin of errors: `checkpoint: PATH`.
    [[nodiscard]] const std::string& where() const noexcept { return where_; }
    void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }

    /// The weights of a model from any stored type, by the parameters' names or by published names (PublishedWeights).
    /// If the file has no scales and a parameter has one, the value gets the scale of its size (`optim::unit_scale`).
    /// A value that T cannot represent is rounded. `notes` reports both, and heads that are not in file and model.
    /// `plain`: scales are multiplied into the data; recipes that do not propagate scales need this.
    /// `keep_codes`: weights that the file holds as codes stay codes (`Parameter::keep_coded`).
    /// Errors: a finite weight that is infinite in T; a tensor of published weights that belongs to no parameter.
    template <class T>
    void weights(const std::vector<Parameter<T>*>& parameters, bool plain = false, bool keep_codes = false) {
        using Read = std::conditional_t<std::same_as<T, double>, double, float>;
        const std::optional<PublishedWeights> published = find_published(parameters);
        std::size_t rescaled = 0, rounded = 0;
        for (Parameter<T>* parameter : parameters) {
            const std::string& name = parameter->name();
            if (published && !published->holds(name)) continue;
            const bool coded = !published && io::holds_codes(reader_, name);
            if (coded && keep_codes) {
                const auto codes =
                    std::make_shared<CodedWeight>(io::read_coded_weight(reader_, name, parameter->shape()));
                pending_.push_back([parameter, codes] { parameter->keep_coded(std::move(*codes)); });
                continue;
            }
            const bool has_scale = !coded && reader_.contains(name + ".scale"),
                       rescales = !plain && !has_scale && parameter->scale() != 1.0;
            rescaled += rescales ? 1 : 0;
            const auto read = [this, parameter, published, plain, rescales, coded] {
                const std::string& own = parameter->name();
                Tensor<Read> values = coded ? decoded<Read>(io::read_coded_weight(reader_, own, parameter->shape()))
                                      : published ? published->read<Read>(own, parameter->shape())
                                                  : reader_.read_as<Read>(own, parameter->shape());
                if (!coded) set_scale(own, values);
                if (plain) return set_scaling(std::move(values), 1.0);
                const double unit = rescales ? optim::unit_scale(values) : 1.0;
                return rescales ? set_scaling(std::move(values), unit) : values;
            };
            if (!coded && !has_scale && !rescales &&
                io::holds_exactly<T>(published ? published->entry(name) : reader_.entry(name))) {
                if (published) published->check_readable<Read>(name, parameter->shape());
                else reader_.check_readable<Read>(name, parameter->shape());
                pending_.push_back([read, parameter] {
                    if constexpr (std::same_as<T, Read>) parameter->write() = read();
                    else parameter->write() = cast<T>(read());
                });
                continue;
            }
            const Tensor<Read> values = read();
            Tensor<T> value(values.shape());
            value.set_scale(values.scale());
            bool same = true;
            for (std::size_t i = 0; i < values.size(); ++i) {
                const Read number = values.data()[i];
                value.data()[i] = element_cast<T>(number);
                const auto kept = static_cast<Read>(value.data()[i]);
                check(std::isfinite(kept) || !std::isfinite(number), where_, ": ", name, " holds ", number,
                      ", which the type of this model's weights does not");
                same = same && (kept == number || number != number);
            }
            rounded += same ? 0 : 1;
            pending_.push_back(
                [parameter, value = std::move(value)]() mutable { parameter->write() = std::move(value); });
        }
        if (rescaled > 0) note(": has no scales; ", rescaled, " weights were given scales of their sizes");
        if (rounded > 0) note(": ", rounded, " weights were rounded to the type of this model's");
    }

    /// Error: a parameter's facts differ from the saved facts, so that its learning rate may differ too.
    /// Files without facts pass.
    template <class T>
    void facts(const std::vector<Parameter<T>*>& parameters) const {
        const auto found = reader_.metadata().find("facts");
        if (found == reader_.metadata().end()) return;
        const auto json = parsed(found->second);
        check(json.is_object(), where_, ": its facts are not a JSON object");
        for (const Parameter<T>* parameter : parameters) {
            const auto entry = json.find(parameter->name());
            const nlohmann::ordered_json own = io::facts_to_json(parameter->facts());
            check(entry == json.end() || *entry == own, where_, ": ", parameter->name(), " was trained as ",
                  entry == json.end() ? "" : entry->dump().substr(0, 120), "; here it is ", own.dump());
        }
    }

    /// State is read in its stored type only: codes of another format would be other numbers.
    /// Scales of blocks are a tensor of their own, which is read before the tensor that they scale.
    /// `tensor` keeps its memory.
    template <class T>
    void tensor(const std::string& name, Tensor<T>& tensor) {
        elements<T>(name, tensor);
    }
    template <CodeWord Code>
    void codes(const std::string& name, const FloatFormat& format, Tensor<Code>& tensor) {
        io::with_code_type<Code>(format, [&]<class E>(E) { elements<E>(name, tensor); });
    }
    void scalar(const std::string& name, std::uint64_t& value) {
        const std::string& text = metadata(name);
        std::uint64_t found = 0;
        const auto read = std::from_chars(text.data(), text.data() + text.size(), found);
        const bool whole = read.ec == std::errc() && read.ptr == text.data() + text.size();
        check(whole, where_, ": ", prefix_, name, " is '", text.substr(0, 40), "'; expected a whole number");
        pending_.push_back([&value, found] { value = found; });
    }
    void number(const std::string& name, double& value) {
        const auto json = parsed(metadata(name));
        check(json.is_number(), where_, ": ", prefix_, name, " is '", metadata(name).substr(0, 40),
              "'; expected a number");
        pending_.push_back([&value, found = json.get<double>()] { value = found; });
    }
    void table(const std::string& name, std::map<std::string, double>& table) const {
        const auto json = parsed(metadata(name));
        const auto is_number = [](const auto& entry) { return entry.is_number(); };
        check(json.is_object() && std::all_of(json.begin(), json.end(), is_number), where_, ": ", prefix_, name,
              " is not a table of numbers");
        table = json.get<std::map<std::string, double>>();
    }
    [[nodiscard]] const std::string& text(const std::string& name) const { return metadata(name); }
    [[nodiscard]] Recipe recipe() const {
        const auto found = reader_.metadata().find("recipe");
        check(found != reader_.metadata().end(), where_, ": has no recipe");
        const auto json = parsed(found->second);
        check(!json.is_discarded(), where_, ": its recipe is not JSON");
        return io::recipe_from_json(json);
    }

    /// Copies everything that was read to its place.
    void commit() {
        for (auto& put : pending_) put();
        pending_.clear();
    }
    /// One line for each lack of the file that was made up for: missing scales, rounded weights.
    [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

private:
    /// Reads the elements of `tensor`, which the file holds as E, a type of equal size.
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
    template <class... Parts>
    void note(const Parts&... parts) {
        notes_.push_back(concatenate(where_, parts...));
    }
    /// Published weights in the file. Empty: there are none, or the file has one of the parameters by its own name.
    template <class T>
    [[nodiscard]] std::optional<PublishedWeights> find_published(const std::vector<Parameter<T>*>& parameters) {
        std::vector<std::string> names;
        for (const Parameter<T>* parameter : parameters) {
            if (reader_.contains(parameter->name())) return std::nullopt;
            names.push_back(parameter->name());
        }
        std::optional<PublishedWeights> published = PublishedWeights::find(reader_, where_);
        if (published)
            for (const std::string& line : published->check_all_used(names)) note(line);
        return published;
    }

    /// Gives a tensor its scale from the file, if the file has one.
    template <class T>
    void set_scale(const std::string& name, Tensor<T>& value) const {
        if (!reader_.contains(name + ".scale")) return;
        const Tensor<double> found = reader_.read_as<double>(name + ".scale");
        const double scale = found.size() == 1 ? found.data()[0] : 0.0;
        check(scale > 0.0 && scale <= std::numeric_limits<double>::max(), where_, ": ", name, ".scale is ", scale,
              "; expected one positive finite number");
        value.set_scale(scale);
    }
    /// JSON of the file's metadata; a discarded value if the text is not JSON.
    [[nodiscard]] static nlohmann::ordered_json parsed(const std::string& text) {
        return nlohmann::ordered_json::parse(text, nullptr, false);
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
    int exceptions_ = std::uncaught_exceptions();  ///< on their way when the reader was made
};

/// The parts of a training run, borrowed.
template <class T, class Optimiser>
struct RunParts {
    std::vector<Parameter<T>*> parameters;
    Optimiser& optimiser;
    ScalingState& state;
    optim::LossScaler& scaler;
    Remainders* remainders = nullptr;  ///< of error feedback (`StepReducer::remainders`); null: the recipe has none
};

/// Saves all of a run: weights, optimiser, ScalingState (step, seed, plan, past magnitudes), loss scale, recipe,
/// remainders of error feedback, and the caller's own numbers `more` and `texts`. Random streams and the place in the
/// data are functions of seed and step.
/// `group`: processes that share the optimiser's state, or hold remainders. Every one of them calls the function, and
/// process 0 writes the file. One process that has all the state would write the same bytes.
/// Errors: the errors of SafetensorsWriter, in every process; a group is missing.
template <class T, class Optimiser>
void save_run(const std::filesystem::path& path, const RunParts<T, Optimiser>& run, const Recipe& recipe,
              const std::map<std::string, double>& more = {}, const std::map<std::string, std::string>& texts = {},
              ProcessGroup* group = nullptr) {
    if (group == nullptr) optim::check_whole_state("save_run", run.optimiser);
    if (group == nullptr && run.remainders != nullptr) run.remainders->check_whole("save_run");
    CheckpointWriter writer;
    const bool first = group == nullptr || group->rank() == 0;
    if (first || optim::is_sharded(run.optimiser)) {
        writer.set_prefix("optimiser/");
        run.optimiser.visit_state(writer);
    }
    if (run.remainders != nullptr) run.remainders->write(writer);
    if (first) {  // what all processes have
        writer.weights(run.parameters);
        writer.recipe(recipe);
        writer.set_prefix("loss_scaler/");
        run.scaler.visit_state(writer);
        writer.set_prefix("state/");
        run.state.visit_state(writer);
        writer.set_prefix("run/");
        writer.table("numbers", more);
        for (const auto& [name, text] : texts) writer.text(name, text);
    }
    writer.write(path, group);
}

/// Restores a saved run: it continues to the bit as if it had not been interrupted, in any number of processes. Where
/// these share the optimiser's state, each reads what it owns. With remainders of error feedback the next step needs as
/// many micro-batches as the saved run. Returns `more`. Given `texts` must equal the saved texts.
/// Errors, which change nothing: the errors of CheckpointReader; `checkpoint: PATH: its vocabulary is not this run's`;
/// a file without remainders, where the run has error feedback.
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
    Remainders::Kept remainders;
    if (run.remainders != nullptr) remainders = run.remainders->read(reader, run.parameters);
    reader.commit();
    if (run.remainders != nullptr) run.remainders->restore(std::move(remainders));
    return more;
}

/// Saves the weights, and as metadata settings that their shapes do not tell. Errors: the errors of CheckpointWriter.
template <class T>
void save_weights(const std::filesystem::path& path, const std::vector<Parameter<T>*>& parameters,
                  const std::map<std::string, std::uint64_t>& settings = {}) {
    CheckpointWriter writer;
    writer.weights(parameters);
    for (const auto& [name, value] : settings) writer.scalar(name, value);
    writer.write(path);
}
/// Loads the weights alone, and returns CheckpointReader's notes. Errors: the errors of CheckpointReader.
template <class T>
std::vector<std::string> load_weights(const std::filesystem::path& path, const std::vector<Parameter<T>*>& parameters,
                                      bool plain = false) {
    CheckpointReader reader(path);
    reader.weights(parameters, plain);
    reader.commit();
    return reader.notes();
}

}  // namespace unitscale::train
