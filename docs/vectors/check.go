// The rules of docs/messages.md in Go, against the vectors beside this file: go run docs/vectors/check.go
// Needs Go alone, 1.21 or newer. Copy from it what an implementation of yours needs.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	maxBytes   = 65_536
	maxNesting = 32
	maxSpanMs  = 315_576_000_000
	firstMs    = -62_135_596_800_000
	lastMs     = 253_402_300_799_999
)

var (
	timeForm   = regexp.MustCompile(`^(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?(?:[Zz]|([+-])(\d\d)(?::?(\d\d))?)$`)
	tenantForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	uuidForm   = regexp.MustCompile(`^(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	surrogate  = regexp.MustCompile(`^\\u[dD]([89abAB]|[c-fC-F])[0-9a-fA-F]{2}`)
)

type object = map[string]any

// firingID returns the id of a firing: its due time in front, a hash of its identity behind.
func firingID(kind, tenantID, serviceCallID string, generation, dueAtMs int64) string {
	more := ""
	if kind == "TimerExpired" {
		more = "\nTimerExpired"
	}
	identity := fmt.Sprintf("%s\n%s\n%d\n%d%s", tenantID, serviceCallID, generation, dueAtMs, more)
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte(identity)))
	moment := fmt.Sprintf("%012x", max(dueAtMs, 0))
	nibble, _ := strconv.ParseInt(hash[4:5], 16, 8)
	return fmt.Sprintf("%s-%s-7%s-%x%s-%s", moment[:8], moment[8:], hash[:3], 8|nibble&3, hash[5:8], hash[8:20])
}

// parseTime returns a time in milliseconds since 1970, rounded up, and whether it is accepted.
func parseTime(value any) (int64, bool) {
	text, _ := value.(string)
	match := timeForm.FindStringSubmatch(text)
	if match == nil {
		return 0, false
	}
	var part [11]int
	for _, group := range []int{1, 2, 3, 4, 5, 6, 9, 10} {
		part[group], _ = strconv.Atoi(match[group])
	}
	date := time.Date(part[1], time.Month(part[2]), part[3], 0, 0, 0, 0, time.UTC)
	isDate := part[1] >= 1 && int(date.Month()) == part[2] && date.Day() == part[3]
	if !isDate || part[4] > 23 || part[5] > 59 || part[6] > 59 || part[9] > 23 || part[10] > 59 {
		return 0, false
	}
	rounded, _ := strconv.ParseInt((match[7] + "000")[:3], 10, 64)
	if len(match[7]) > 3 && strings.Trim(match[7][3:], "0") != "" {
		rounded++
	}
	offset := int64(part[9]*60+part[10]) * 60_000
	if match[8] == "-" {
		offset = -offset
	}
	ms := date.UnixMilli() + int64((part[4]*60+part[5])*60+part[6])*1_000 + rounded - offset
	return ms, ms >= firstMs && ms <= lastMs
}

// refused is what becomes of a command that breaks a rule; it travels as a panic.
type refused struct{ reason, names string }

func refuseUnless(holds bool, names string, reason ...string) {
	if !holds {
		panic(refused{append(reason, "invalid")[0], names})
	}
}

func whole(value any, last int64) (int64, bool) {
	text, _ := value.(json.Number)
	number, err := strconv.ParseInt(string(text), 10, 64)
	return number, err == nil && number >= 0 && number <= last
}

func isTenant(value any) bool {
	text, ok := value.(string)
	return ok && tenantForm.MatchString(text)
}

func isOpaque(value any) bool {
	text, ok := value.(string)
	length := utf8.RuneCountInString(text)
	return ok && length >= 1 && length <= 255 && !strings.ContainsFunc(text, unicode.IsControl)
}

func isServiceCall(value any) bool {
	return isOpaque(value) && !strings.ContainsFunc(value.(string), unicode.IsSpace)
}

// isWellFormed tells whether no escape is half of a pair; encoding/json would put U+FFFD in its place.
func isWellFormed(body []byte) bool {
	isHigh := false
	for at := 0; at < len(body); {
		size, half := 1, surrogate.FindSubmatch(body[at:min(at+6, len(body))])
		isLow := half != nil && strings.Contains("cdefCDEF", string(half[1]))
		if isLow != isHigh {
			return false
		}
		isHigh = half != nil && !isLow
		if half != nil {
			size = 6
		} else if body[at] == '\\' {
			size = 2
		}
		at += size
	}
	return !isHigh
}

func depth(value any) int {
	deepest := -1
	switch value := value.(type) {
	case object:
		deepest = 0
		for _, each := range value {
			deepest = max(deepest, depth(each))
		}
	case []any:
		deepest = 0
		for _, each := range value {
			deepest = max(deepest, depth(each))
		}
	}
	return deepest + 1
}

func readJSON(body []byte, into any) error {
	if !json.Valid(body) {
		return fmt.Errorf("not JSON")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	return decoder.Decode(into)
}

func parse(body []byte) object {
	refuseUnless(len(body) <= maxBytes, "the body", "too_large")
	var value any
	refuseUnless(utf8.Valid(body) && readJSON(body, &value) == nil, "the body", "not_json")
	fields, isObject := value.(object)
	refuseUnless(isWellFormed(body) && depth(value) <= maxNesting && isObject, "the body")
	return fields
}

// readCommand returns what a command means, given its subject, its bytes and when the broker stored it (ms, rounded up).
func readCommand(subject string, body []byte, storedMs int64) object {
	tokens := strings.Split(strings.TrimPrefix(subject, "timer.commands."), ".")
	isType := func(value any) bool { return value == "ScheduleTimer" || value == "CancelTimer" }
	refuseUnless(isTenant(tokens[0]) && len(tokens) == 2, "subject")
	refuseUnless(isType(tokens[1]), "subject", "unknown_type")
	envelope := parse(body)
	id, _ := envelope["id"].(string)
	refuseUnless(uuidForm.MatchString(id), "id")
	kind, isText := envelope["type"].(string)
	refuseUnless(isText, "type")
	refuseUnless(isTenant(envelope["tenantId"]), "tenantId")
	_, isMoment := whole(envelope["timestampMs"], lastMs)
	refuseUnless(isMoment, "timestampMs")
	payload, isObject := envelope["payload"].(object)
	refuseUnless(isObject, "payload")
	refuseUnless(envelope["correlationId"] == nil || isOpaque(envelope["correlationId"]), "correlationId")
	refuseUnless(isType(kind), "type", "unknown_type")
	refuseUnless(kind == tokens[1], "type")
	refuseUnless(envelope["tenantId"] == tokens[0], "tenantId", "tenant_mismatch")
	return readPayload(envelope, payload, storedMs)
}

func readPayload(envelope, payload object, storedMs int64) object {
	refuseUnless(isTenant(payload["tenantId"]), "payload.tenantId")
	refuseUnless(isServiceCall(payload["serviceCallId"]), "payload.serviceCallId")
	means := object{"type": envelope["type"], "tenantId": envelope["tenantId"], "serviceCallId": payload["serviceCallId"]}
	if envelope["type"] == "ScheduleTimer" {
		readWanted(payload, storedMs, means)
		if envelope["correlationId"] != nil {
			means["correlationId"] = envelope["correlationId"]
		}
	}
	refuseUnless(payload["_tag"] == nil || payload["_tag"] == envelope["type"], "payload._tag")
	refuseUnless(payload["tenantId"] == envelope["tenantId"], "payload.tenantId", "tenant_mismatch")
	return means
}

func readWanted(payload object, storedMs int64, means object) {
	hasDue, hasDelay := payload["dueAt"] != nil, payload["delayMs"] != nil
	dueMs, isDue := parseTime(payload["dueAt"])
	delayMs, isDelay := whole(payload["delayMs"], maxSpanMs)
	ifAbsent, isFlag := payload["ifAbsent"].(bool)
	_, isSpan := whole(payload["expiresAfterMs"], maxSpanMs)
	refuseUnless(!hasDue || isDue, "payload.dueAt")
	refuseUnless(!hasDelay || isDelay, "payload.delayMs")
	refuseUnless(payload["ifAbsent"] == nil || isFlag, "payload.ifAbsent")
	refuseUnless(payload["expiresAfterMs"] == nil || isSpan, "payload.expiresAfterMs")
	refuseUnless(hasDue != hasDelay, "payload")
	if hasDelay {
		dueMs = storedMs + delayMs
	}
	means["dueAt"] = iso(dueMs, true)
	if ifAbsent {
		means["ifAbsent"] = true
	}
	if isSpan {
		means["expiresAfterMs"] = payload["expiresAfterMs"]
	}
}

func iso(ms int64, isTime bool) any {
	if !isTime {
		return nil
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}

func bodyOf(vector object) []byte {
	text, _ := vector["body"].(string)
	body := []byte(text)
	if encoded, ok := vector["bodyBase64"].(string); ok {
		body, _ = base64.StdEncoding.DecodeString(encoded)
	}
	size, _ := whole(vector["padTo"], lastMs)
	return append(body, bytes.Repeat([]byte(" "), max(0, int(size)-len(body)))...)
}

func outcome(vector object) (found any) {
	defer func() {
		if problem, ok := recover().(refused); ok {
			found = problem
		}
	}()
	stored, isTime := parseTime(vector["storedAt"])
	if !isTime {
		stored, _ = parseTime("2025-06-02T07:25:00.000Z")
	}
	return readCommand(vector["subject"].(string), bodyOf(vector), stored)
}

func idOf(kind any, firing object) any {
	generation, _ := whole(firing["generation"], lastMs)
	dueAtMs, _ := parseTime(firing["dueAt"])
	return firingID(kind.(string), firing["tenantId"].(string), firing["serviceCallId"].(string), generation, dueAtMs)
}

func read(name string, into any) {
	folder := "docs/vectors"
	if len(os.Args) > 1 {
		folder = os.Args[1]
	}
	text, err := os.ReadFile(filepath.Join(folder, name+".json"))
	if err == nil {
		err = readJSON(text, into)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name, err)
		os.Exit(1)
	}
}

func main() {
	var ids, events []object
	var times, commands map[string][]object
	for name, into := range map[string]any{"ids": &ids, "events": &events, "times": &times, "commands": &commands} {
		read(name, into)
	}
	count, passed := 0, 0
	check := func(vector object, found, expected any) {
		count++
		if reflect.DeepEqual(found, expected) {
			passed++
		} else {
			fmt.Fprintf(os.Stderr, "%v\n  found    %v\n  expected %v\n", vector, found, expected)
		}
	}
	for _, vector := range ids {
		check(vector, idOf(vector["type"], vector), vector["id"])
	}
	for _, vector := range append(times["accepted"], times["refused"]...) {
		check(vector, iso(parseTime(vector["sent"])), vector["kept"])
	}
	for _, vector := range commands["accepted"] {
		check(vector, outcome(vector), vector["means"])
	}
	for _, vector := range commands["refused"] {
		check(vector, outcome(vector), refused{vector["reason"].(string), vector["names"].(string)})
	}
	for _, vector := range events {
		envelope := vector["envelope"].(object)
		check(vector, idOf(envelope["type"], envelope["payload"].(object)), envelope["id"])
	}
	fmt.Printf("%d of %d passed\n", passed, count)
	if passed < count {
		os.Exit(1)
	}
}
