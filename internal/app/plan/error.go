package plan

import (
	"fmt"
	"strings"

	appspec "tarn.dev/tarn/internal/app/spec"
)

// Code is the kind of error that a call returns, a closed set.
type Code string

// The codes.
const (
	// Invalid: the request is wrong, whatever objects exist.
	Invalid Code = "invalid"
	// NotFound: the object does not exist, or the caller may not see it.
	NotFound Code = "not_found"
	// Conflict: existing objects prevent it.
	Conflict Code = "conflict"
	// Unauthorized: the caller is not known.
	Unauthorized Code = "unauthorized"
	// Forbidden: the caller may see it, but not do this.
	Forbidden Code = "forbidden"
	// TooMany: the caller calls too often.
	TooMany Code = "too_many_requests"
	// TooLarge: the request is longer than the limit.
	TooLarge Code = "too_large"
	// WrongType: the server does not understand the content type of the request.
	WrongType Code = "unsupported_media_type"
	// WrongMethod: the path is right, the method is not.
	WrongMethod Code = "method_not_allowed"
	// Timeout: the request arrived too slowly.
	Timeout Code = "timeout"
	// Internal: something failed that is not the caller's fault.
	Internal Code = "internal"
)

// Problem is one error in a file.
type Problem struct {
	Line    int    `json:"line,omitempty" doc:"Line of the file, from 1; absent for JSON"`
	Column  int    `json:"column,omitempty" doc:"Column of the line, from 1"`
	Key     string `json:"key,omitempty" doc:"Key it is about" example:"volumes[0].size"`
	Message string `json:"message" doc:"What is wrong and what to write instead"`
}

// Error is an error with a code. Its message is for the caller.
type Error struct {
	Code    Code   `json:"code" doc:"Kind of the error" example:"conflict"`
	Message string `json:"message" doc:"What is wrong"`
	// Problems are those of a file, each with its place.
	Problems []Problem `json:"problems,omitempty" doc:"Everything that is wrong with a file, each with its place"`
	// Cause is the error behind Internal; it is not part of the answer.
	Cause error `json:"-"`
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause, nil if there is none.
func (e *Error) Unwrap() error { return e.Cause }

// Errorf returns an error with a code.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// AppNotFound says that an application does not exist. The words are the same for an application
// that the caller may not see.
func AppNotFound(id string) *Error { return Errorf(NotFound, "app '%s' not found", id) }

// badFile returns one error for all problems of a file.
func badFile(problems appspec.Problems) *Error {
	return &Error{Code: Invalid, Message: problems.Error(), Problems: answered(problems)}
}

func answered(problems []appspec.Problem) []Problem {
	all := make([]Problem, len(problems))
	for i, p := range problems {
		all[i] = Problem{Line: p.Line, Column: p.Column, Key: p.Key, Message: p.Message}
	}
	return all
}

// together returns one error for all reasons why a deploy is rejected.
func together(errs []*Error) *Error {
	if len(errs) == 0 {
		return nil
	}
	all := &Error{Code: errs[0].Code}
	lines := make([]string, len(errs))
	for i, e := range errs {
		lines[i] = e.Message
		if e.Code == Invalid {
			all.Code = Invalid
		}
	}
	all.Message = strings.Join(lines, "\n")
	return all
}
