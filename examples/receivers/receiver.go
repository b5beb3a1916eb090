// Receive callbacks: check the signature, drop what was seen before, do the work once.
//
//	WEBHOOK_KEY=whpk_… PORT=9000 go run receiver.go        (Go 1.21 or newer; no modules)
//
// `timer-service signing-keys list --tenant …` shows the key, and with `--secret` also one for HMAC (whsec_…). While
// keys rotate, give both, separated by a space.
package main

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	tolerance    = 5 * time.Minute
	maxBodyBytes = 1024 * 1024
)

var (
	keys = strings.Fields(os.Getenv("WEBHOOK_KEY"))
	// In production: a table of your database, written in the transaction that does the work.
	seen  = map[string]bool{}
	guard sync.Mutex
)

func isSigned(key, version, text string, content []byte) bool {
	signature, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return false
	}
	prefix, encoded, _ := strings.Cut(key, "_")
	secret, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return false
	}
	switch {
	case version == "v1a" && prefix == "whpk" && len(secret) == ed25519.PublicKeySize:
		return ed25519.Verify(ed25519.PublicKey(secret), content, signature)
	case version == "v1" && prefix == "whsec":
		mac := hmac.New(sha256.New, secret)
		mac.Write(content)
		return hmac.Equal(mac.Sum(nil), signature)
	}
	return false
}

func isValid(header http.Header, body []byte) bool {
	seconds, err := strconv.ParseInt(header.Get("webhook-timestamp"), 10, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)).Abs() > tolerance {
		return false
	}
	content := append([]byte(header.Get("webhook-id")+"."+header.Get("webhook-timestamp")+"."), body...)
	for _, part := range strings.Split(header.Get("webhook-signature"), " ") {
		version, text, _ := strings.Cut(part, ",")
		for _, key := range keys {
			if isSigned(key, version, text, content) {
				return true
			}
		}
	}
	return false
}

func receive(response http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(response, request.Body, maxBodyBytes))
	if err != nil {
		response.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	if !isValid(request.Header, body) {
		response.WriteHeader(http.StatusUnauthorized)
		return
	}
	id := request.Header.Get("webhook-id")
	guard.Lock()
	isNew := !seen[id]
	seen[id] = true
	guard.Unlock()
	what := "seen before"
	if isNew {
		what = "done"
	}
	fmt.Println(request.Header.Get("timer-id"), what)
	response.WriteHeader(http.StatusNoContent) // Anything but 2xx comes again.
}

func main() {
	port := os.Getenv("PORT")
	if port == "" {
		port = "9000"
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("listening on port %d\n", listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(http.Serve(listener, http.HandlerFunc(receive)))
}
