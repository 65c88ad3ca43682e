package rpcerr

import (
	"context"
	"errors"
	"io"
	"strings"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// maxText bounds the text of an error on the wire, in bytes: statuses travel in
// trailers, which are no place for more.
const maxText = 2048

// Parts returns err as code, stable reason and text, as they travel inside a
// stream. A nil error is (OK, "", ""). What the table lacks is (Internal,
// "INTERNAL", "internal error"): known is false, and its text is for the
// server's log alone.
func Parts(err error) (code codes.Code, reason, text string, known bool) {
	if err == nil {
		return codes.OK, "", "", true
	}
	if s, ok := errors.AsType[*sentinel](err); ok {
		return s.code, s.reason, clean(err.Error()), true
	}
	if _, ok := errors.AsType[*message.LimitError](err); ok {
		return codes.InvalidArgument, reasonOf(ErrInvalidArgument), clean(err.Error()), true
	}
	switch {
	case errors.Is(err, context.Canceled):
		return codes.Canceled, "", clean(err.Error()), true
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded, "", clean(err.Error()), true
	}
	return codes.Internal, reasonOf(ErrInternal), ErrInternal.Error(), false
}

// FromParts is the way back of [Parts].
func FromParts(code codes.Code, reason, text string) error {
	if code == codes.OK {
		return nil
	}
	return fromParts(code, reason, text, nil)
}

// Data returns err as the failure of one request of a data stream, nil for nil.
// known is false if the table lacks err, whose text the caller should log.
func Data(err error) (d *tacitv1.DataError, known bool) {
	if err == nil {
		return nil, true
	}
	code, reason, text, known := Parts(err)
	return &tacitv1.DataError{Code: int32(code), Reason: reason, Message: text}, known //nolint:gosec // codes are small
}

// FromData is the way back of [Data].
func FromData(d *tacitv1.DataError) error {
	if d == nil {
		return nil
	}
	code := codes.Code(d.GetCode()) //nolint:gosec // an unknown code stays unknown
	if code == codes.OK {
		code = codes.Unknown // an error that says OK is still one
	}
	return fromParts(code, d.GetReason(), d.GetMessage(), nil)
}

// Status returns err as a gRPC status. A status that err already carries is kept,
// since gRPC made it. known is false if the table lacks err.
func Status(err error) (st *status.Status, known bool) {
	if err == nil {
		return nil, true
	}
	code, reason, text, known := Parts(err)
	if !known {
		if carrier, ok := errors.AsType[interface {
			error
			GRPCStatus() *status.Status
		}](err); ok && carrier.GRPCStatus() != nil && carrier.GRPCStatus().Code() != codes.OK {
			return carrier.GRPCStatus(), true
		}
	}
	st = status.New(code, text)
	if reason == "" {
		return st, known
	}
	info := &errdetails.ErrorInfo{Reason: reason, Domain: Domain}
	with, detailErr := st.WithDetails(info)
	if field, desc := violation(err); field != "" {
		with, detailErr = st.WithDetails(info, &errdetails.BadRequest{
			FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: clean(field), Description: clean(desc)}},
		})
	}
	if detailErr != nil {
		return st, known
	}
	return with, known
}

// FromError is the way back of [Status]: what a gRPC call returned becomes an
// error that keeps the text, the status (status.Code works) and the sentinel.
// nil, io.EOF and errors that are no status stay as they are.
func FromError(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	reason, field, desc := "", "", ""
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == Domain {
				reason = d.GetReason()
			}
		case *errdetails.BadRequest:
			if v := d.GetFieldViolations(); len(v) > 0 {
				field, desc = v[0].GetField(), v[0].GetDescription()
			}
		}
	}
	e := fromParts(st.Code(), reason, st.Message(), st)
	if field != "" {
		e.cause = &FieldError{Field: field, Text: desc}
	}
	return e
}

// Error is an error that came over the wire.
type Error struct {
	code   codes.Code
	reason string
	text   string
	cause  error // the sentinel or a FieldError; nil if the reason is not known here
	status *status.Status
}

func (e *Error) Error() string {
	if e.text == "" {
		return e.code.String()
	}
	return e.text
}

// Unwrap gives the sentinel.
func (e *Error) Unwrap() error { return e.cause }

// Code is the gRPC code.
func (e *Error) Code() codes.Code { return e.code }

// Reason is the stable name, "" if the peer gave none.
func (e *Error) Reason() string { return e.reason }

// GRPCStatus makes status.Code and status.FromError work.
func (e *Error) GRPCStatus() *status.Status {
	if e.status != nil {
		return e.status
	}
	return status.New(e.code, e.text)
}

// Temporary reports whether the same request may succeed later at the same or
// another server: the peer is closing, overloaded or not to be reached, or the
// call ran out of time. A cancelled call is not temporary.
func Temporary(err error) bool {
	var code codes.Code
	if s, ok := errors.AsType[*sentinel](err); ok {
		if s == ErrLimitReached { //nolint:errorlint // identity: the error found is the table's line
			return false
		}
		code = s.code
	} else if carrier, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		code = carrier.GRPCStatus().Code()
	} else if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	switch code {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return true
	default:
		return false
	}
}

func fromParts(code codes.Code, reason, text string, st *status.Status) *Error {
	e := &Error{code: code, reason: reason, text: text, status: st}
	if reason != "" {
		for _, line := range table() {
			if reasonOf(line) == reason {
				e.cause = line
				return e
			}
		}
	}
	switch code {
	case codes.Canceled:
		e.cause = context.Canceled
	case codes.DeadlineExceeded:
		e.cause = context.DeadlineExceeded
	default: // a reason of a newer peer: its code still says what to do
	}
	return e
}

func reasonOf(err error) string {
	if s, ok := err.(*sentinel); ok { //nolint:errorlint // lines of the table are not wrapped
		return s.reason
	}
	return ""
}

// violation returns the field that err complains of.
func violation(err error) (field, text string) {
	if fe, ok := errors.AsType[*FieldError](err); ok {
		return fe.Field, fe.Text
	}
	if le, ok := errors.AsType[*message.LimitError](err); ok {
		return le.Field, le.Value + ": must be " + le.Limit
	}
	return "", ""
}

// clean makes text fit for a protobuf string: valid UTF-8 and not too long.
func clean(text string) string {
	if len(text) > maxText {
		cut := maxText
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut] + "..."
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
