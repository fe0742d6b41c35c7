// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/micro_batch_tree.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::train {

/// The remainders of error feedback (`Communication`): for each micro-batch and parameter, the last gradient less its
/// rounded value. Error feedback adds it to the next gradient. A process holds the remainders of its own micro-batches
/// (`share_of`). A checkpoint has all remainders, so that a run goes on to the bit in any number of processes:
///   remainders/0/network/first/weight         of micro-batch 0, F32, in the shape of the parameter
///   remainders/0/network/first/weight.scale   F64, one element, where the scale is not 1
/// The number of micro-batches is the metadata `remainders/micro_batches`; it is 0 before the first step.
/// Test: tests/train/remainders_test.cpp
class Remainders {
public:
    /// Of process `rank` of `processes`.
    explicit Remainders(std::size_t rank = 0, std::size_t processes = 1) : rank_(rank), processes_(processes) {}
    Remainders(const Remainders&) = delete;
    Remainders& operator=(const Remainders&) = delete;

    /// Error, which begins with `op`: other processes hold some of them.
    void check_whole(const char* op) const {
        check(processes_ == 1, op, ": other processes hold remainders of error feedback; expected their group");
    }

    /// Begins a step of so many micro-batches. Remainders of another number are forgotten.
    /// Error: they are a checkpoint's, and this is the first step since it was read.
    void begin(std::size_t micro_batches) {
        check(!restored_ || micro_batches == kept_.micro_batches, "TreeReducer: ", micro_batches,
              " micro-batches, and the checkpoint has error feedback's remainders of ", kept_.micro_batches,
              "; expected as many");
        restored_ = false;
        if (micro_batches != kept_.micro_batches) forget();
        kept_.micro_batches = micro_batches;
    }
    /// The remainder of a micro-batch for a parameter: zeros before the first. It is data() times scale().
    [[nodiscard]] Tensor<float>& of(std::size_t micro_batch, const std::string& parameter, const Shape& shape) {
        const auto [place, is_new] = kept_.values.try_emplace({micro_batch, parameter}, shape);
        if (is_new) std::ranges::fill(place->second.span(), 0.0f);
        return place->second;
    }
    void forget() noexcept { kept_.values.clear(); }

    /// Gives a CheckpointWriter the tensors of this process, and in process 0 their number of micro-batches.
    template <class Writer>
    void write(Writer& writer) const {
        writer.set_prefix(prefix);
        if (rank_ == 0) writer.text("micro_batches", std::to_string(kept_.micro_batches));
        for (const auto& [key, value] : kept_.values) writer.tensor(name_of(key), value);
    }

    struct Kept {
        std::size_t micro_batches = 0;
        std::map<std::pair<std::size_t, std::string>, Tensor<float>> values{};  ///< by micro-batch and parameter
    };
    /// Reads this process's remainders. Call `restore` with the result once the CheckpointReader has committed.
    /// Errors: the file has no remainders, or no number of micro-batches; the errors of CheckpointReader.
    template <class Reader, class T>
    [[nodiscard]] Kept read(Reader& reader, const std::vector<Parameter<T>*>& parameters) const {
        reader.set_prefix(prefix);
        check(reader.file().metadata().contains(std::string(prefix) + "micro_batches"), reader.where(),
              ": has no remainders of error feedback; expected a run that was saved with them, or "
              "communication.error_feedback=false");
        const std::string& text = reader.text("micro_batches");
        Kept kept;
        const auto read = std::from_chars(text.data(), text.data() + text.size(), kept.micro_batches);
        check(read.ec == std::errc() && read.ptr == text.data() + text.size(), reader.where(), ": ", prefix,
              "micro_batches is '", text.substr(0, 40), "'; expected a whole number");
        const MicroBatchRange share = share_of(kept.micro_batches, rank_, processes_);
        for (std::size_t i = share.begin; i < share.end; ++i)
            for (const Parameter<T>* parameter : parameters) {
                const std::pair key(i, parameter->name());
                if (!reader.file().contains(prefix + name_of(key))) continue;  // no gradient so far
                const auto place = kept.values.try_emplace(key, parameter->shape()).first;
                reader.tensor(name_of(key), place->second);
            }
        return kept;
    }
    void restore(Kept&& kept) noexcept {
        kept_ = std::move(kept);
        restored_ = kept_.micro_batches > 0;
    }

private:
    static constexpr const char* prefix = "remainders/";

    [[nodiscard]] static std::string name_of(const std::pair<std::size_t, std::string>& key) {
        return concatenate(key.first, '/', key.second);
    }

    std::size_t rank_, processes_;
    Kept kept_{};
    bool restored_ = false;  ///< by a checkpoint, and no step since
};

}  // namespace unitscale::train
