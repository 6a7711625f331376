#include "server/service/acquire_call.h"

#include "server/service/rate_limiter.h"

namespace sluice::service {

void AcquireCall::Reset(Form form, Utf8 utf8) {
  form_ = form;
  utf8_ = utf8;
  begun_ = 0;
  status_ = absl::OkStatus();
  items_.clear();
  asked_.clear();
  // Tables are let go now, so that an idle call does not keep old ones alive.
  for (size_t i = 0; i < attempts_used_; ++i) attempts_[i]->table.reset();
  attempts_used_ = 0;
  receipts_.clear();
  was_held_ = false;
  cut_ns_ = 0;
  held_.Reset();
}

void AcquireCall::Held::OnAnswer(waiting::HeldOutcome outcome) {
  call_->limiter_->Answer(call_, outcome);
}

void AcquireCall::Attempt::Done() { call_->limiter_->Decided(call_); }

}  // namespace sluice::service
