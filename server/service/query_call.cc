#include "server/service/query_call.h"

#include "common/bounds.h"
#include "common/errors.h"
#include "server/service/permission.h"

namespace sluice::service {

namespace errors = common::errors;

void QueryCall::Reset(UnknownLimit unknown, Utf8 utf8) {
  unknown_ = unknown;
  utf8_ = utf8;
  added_ = 0;
  asked_.clear();
  found_.clear();
  limits_.Use(nullptr);
  if (caller_ != nullptr) caller_ = nullptr;
  status_ = absl::OkStatus();
  ResetWork();
}

void QueryCall::AddBucket(std::string_view limit, std::string_view key) {
  if (++added_ > common::bounds::kMaxQueryBuckets) return;
  asked_.push_back({limit, key, 0, absl::OkStatus()});
}

const absl::Status& QueryCall::Resolve(const limits::LimitRegistry& registry) {
  limits_.Use(registry.Local());
  status_ = CheckBucketCount(added_);
  for (size_t i = 0; status_.ok() && i < asked_.size(); ++i) {
    Asked& asked = asked_[i];
    const FieldPath path = FieldPath().Element("buckets", i);
    status_ = CheckMayUse(caller_.get(), path, asked.limit);
    if (!status_.ok()) break;
    const auto limit = CheckBucket(path, asked.limit, asked.key, utf8_, limits_);
    if (limit.ok()) {
      asked.item = static_cast<uint32_t>(found_.size());
      store::QueryItem& item = found_.emplace_back();
      item.rule = &(*limit)->RuleFor(asked.key);
      item.key = asked.key;
    } else if (absl::IsNotFound(limit.status()) && unknown_ == UnknownLimit::kFailsBucket) {
      asked.error = limit.status();
    } else {
      status_ = limit.status();
    }
  }
  return status_;
}

void QueryCall::Start(const Collaborators& with, int64_t deadline, DoneFn done, void* context) {
  with_ = &with;
  done_ = done;
  context_ = context;
  Resolve(with.registry);
  if (status_.ok() && !found_.empty() && deadline != store::kNoDeadline &&
      with.clock.NowNs() >= deadline) {
    status_ = errors::PastDeadline();
  }
  if (!status_.ok() || found_.empty()) {
    Done();
    return;
  }
  items = absl::MakeSpan(found_);
  deadline_ns = deadline;
  with.store.Query(this);
}

void QueryCall::Continue() {
  items = items.last(undecided);
  with_->store.Query(this);
}

void QueryCall::Done() {
  wall_ns_ = with_->clock.WallNs();
  done_(context_, this);
}

BucketStatus QueryCall::bucket(size_t i) const {
  const Asked& asked = asked_[i];
  BucketStatus bucket;
  bucket.limit = asked.limit;
  bucket.key = asked.key;
  bucket.error = asked.error;
  if (!asked.error.ok()) return bucket;
  static_cast<store::QueryItem&>(bucket) = found_[asked.item];
  if (with_ != nullptr) bucket.waiting += CallersInLine(*with_, bucket);
  if (bucket.unavailable) bucket.error = errors::BucketNotKnown();
  return bucket;
}

}  // namespace sluice::service
