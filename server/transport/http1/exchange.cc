#include "server/transport/http1/exchange.h"

#include <charconv>
#include <utility>

#include "server/transport/http1/connection.h"
#include "server/transport/http1/loop.h"

namespace sluice::http1 {
namespace {

// Bytes that a pooled exchange keeps in each buffer.
constexpr size_t kKeepBytes = 4 << 10;

// A control character in a value would end the header, and begin another one.
void AppendValue(std::string_view value, common::Buffer* out) {
  auto* const to = out->Reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    const auto byte = static_cast<uint8_t>(value[i]);
    to[i] = byte < 0x20 || byte == 0x7F ? ' ' : byte;
  }
  out->Commit(value.size());
}

}  // namespace

net::PeerIdentity Exchange::peer_identity() const { return connection_->stream().peer_identity(); }
std::string Exchange::peer_address() const { return connection_->stream().peer_address(); }
uint64_t Exchange::peer() const { return connection_->stream().peer(); }
const access::CallerPtr& Exchange::caller() const {
  return connection_->CallerOf(request_.header("authorization").value_or(std::string_view()));
}
bool Exchange::encrypted() const { return connection_->stream().encrypted(); }
net::EventLoop& Exchange::loop() const { return connection_->loop().loop(); }
size_t Exchange::loop_index() const { return connection_->loop().index(); }
std::shared_ptr<transport::ConnectionState>& Exchange::connection_state() const {
  return connection_->service_state();
}
std::shared_ptr<void> Exchange::KeepPendingBytes() const {
  return connection_->loop().HoldMemory(pending_bytes_);
}
std::shared_ptr<void> Exchange::HoldLastingBytes(size_t bytes) {
  return connection_->HoldLasting(bytes);
}

void Exchange::AddHeader(std::string_view name, std::string_view value) {
  head_.Append(name);
  head_.Append(std::string_view(": "));
  AppendValue(value, &head_);
  head_.Append(std::string_view("\r\n"));
}

void Exchange::AddHeader(std::string_view name, int64_t value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  AddHeader(name, std::string_view(digits, static_cast<size_t>(end - digits)));
}

void Exchange::Finish() { connection_->Finish(*this, status_, SharedBytes()); }

void Exchange::Finish(Answer answer) {
  if (!answer.content_type.empty()) AddHeader("content-type", answer.content_type);
  for (const auto& [name, value] : answer.headers) AddHeader(name, value);
  body_.Clear();
  connection_->Finish(*this, answer.status, std::move(answer.body));
}

void Exchange::BeginStream(std::string_view content_type) {
  AddHeader("content-type", content_type);
  connection_->BeginStream(*this);
}
bool Exchange::Write(std::string_view bytes) { return connection_->Write(*this, bytes); }
bool Exchange::writable() const { return connection_->writable(); }
void Exchange::EndWithPeer() {
  ends_with_peer_ = true;
  connection_->MarkDirty();  // the peer may have ended its side before
}
void Exchange::NotifyWritable() { connection_->NotifyWritable(); }
void Exchange::EndStream() { connection_->EndStream(*this); }

void Exchange::Spend(int64_t units) { connection_->Spend(units); }
void Exchange::SetPendingBytes(size_t bytes) {
  pending_bytes_ = bytes;
  connection_->OnMemoryChanged();
}

void Exchange::Recycle() {
  request_.Clear(kKeepBytes);
  head_.Clear(kKeepBytes);
  body_.Clear(kKeepBytes);
  connection_ = nullptr;
  route_ = nullptr;
  phase_ = Phase::kReceiving;
  ends_with_peer_ = head_only_ = is_1_1_ = false;
  status_ = 200;
  code_.reset();
  arrived_ns_ = 0;
  pending_bytes_ = 0;
  state_ = nullptr;
  kept_.reset();
}

}  // namespace sluice::http1
